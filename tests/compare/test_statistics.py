"""The statistics against scikit-learn, scipy, hand computations, and worlds whose truth is known."""

import math
import time

import numpy as np
import pytest
from scipy.stats import norm, t
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from peftlab.compare.scores import average, majority_score, resample
from peftlab.compare.statistics import Difference, _Law, collapsed, holm, judge
from peftlab.errors import UserError
from peftlab.tasks.metrics import scores

EASE, OWN, NOISE, BASE = 2.0, 0.8, 1.2, 1.5
"""spread of the rows, of a method on a row, of a seed on a row; mean of a logit"""


def world(rng, methods, seeds, rows, spread, better=0.0, shared=0.0):
    """Gold labels and predictions [M, S, N]. A run is right on a row where the sum of its normal parts is above 0: the
    row's ease, the method on this row, the seed on this row, and the seed's own level, of standard deviation `spread`
    (and `shared` by all methods). The first method is `better`."""
    spread = np.broadcast_to(spread, (methods,))[:, None, None]
    logit = BASE + EASE * rng.standard_normal(rows) + OWN * rng.standard_normal((methods, 1, rows))
    logit = logit + NOISE * rng.standard_normal((methods, seeds, rows))
    logit = logit + spread * rng.standard_normal((methods, seeds, 1)) + shared * rng.standard_normal((1, seeds, 1))
    logit[0] += better
    gold = rng.integers(0, 2, rows)
    return gold, np.where(logit > 0, gold, 1 - gold)


def names(methods):
    return [f"m{i}" for i in range(methods)]


def called_different(rng, methods, seeds, spread, times, rows=500, **more):
    """The share of comparisons in which some pair, and that in which the first pair, is called different."""
    any_pair = first_pair = 0
    for _ in range(times):
        gold, predictions = world(rng, methods, seeds, rows, spread, **more)
        scores = resample(gold, predictions, 2, resamples=200, seed=int(rng.integers(1 << 30)))
        verdicts = [d.verdict for d in judge(scores, names(methods)).differences]
        any_pair += any(verdict != "indistinguishable" for verdict in verdicts)
        first_pair += verdicts[0] == "better"
    return any_pair / times, first_pair / times


@pytest.mark.parametrize("labels", [2, 3, 7])
def test_metrics_equal_scikit_learns(labels):
    rng = np.random.default_rng(labels)
    gold = rng.integers(0, labels, 60)
    runs = np.where(rng.random((2, 3, 60)) < 0.6, gold, rng.integers(0, labels, (2, 3, 60)))
    runs[1, 2] = 0  # a run that gives one label to all
    if labels > 2:
        gold[gold == labels - 1] = 0  # and a label that no row has
    references = {
        "accuracy": accuracy_score,
        "f1": lambda a, b: f1_score(a, b, average="macro", zero_division=0),
        "matthews": matthews_corrcoef,
    }
    for metric, reference in references.items():
        observed = resample(gold, runs, labels, metric, resamples=1).observed
        expected = [[reference(gold, run) for run in seeds] for seeds in runs]
        np.testing.assert_allclose(observed, expected, atol=1e-12)
        for run, score in ((runs[0, 0], expected[0][0]), (runs[1, 2], expected[1][2])):
            assert scores(run.tolist(), gold.tolist())[metric] == pytest.approx(score)
        majority = np.full(60, np.bincount(gold).argmax())
        assert majority_score(gold, labels, metric) == pytest.approx(reference(gold, majority))


def test_resamples_vary_as_a_share_does_and_are_the_same_rows_for_all_runs():
    rng = np.random.default_rng(0)
    gold, predictions = world(rng, 2, 2, 800, 0.1)
    predictions[1, 1] = predictions[1, 0]
    scores = resample(gold, predictions, 2)
    share = scores.observed[0, 0]
    assert scores.resampled[:, 0, 0].std() == pytest.approx((share * (1 - share) / 800) ** 0.5, rel=0.06)
    assert scores.resampled[:, 0, 0].mean() == pytest.approx(share, abs=0.002)
    np.testing.assert_array_equal(scores.resampled[:, 1, 0], scores.resampled[:, 1, 1])
    np.testing.assert_array_equal(scores.resampled, resample(gold, predictions, 2).resampled)
    assert not np.array_equal(scores.resampled, resample(gold, predictions, 2, seed=1).resampled)


def test_a_missing_run_has_no_score_and_an_unknown_metric_is_named():
    predictions = np.zeros((2, 2, 5), int)
    predictions[1, 1] = -1
    scores = resample([0, 0, 1, 1, 1], predictions, 2, resamples=10)
    assert np.isnan(scores.observed).tolist() == [[False, False], [False, True]]
    assert judge(scores, names(2)).estimates["m1"].seeds == 1
    with pytest.raises(UserError, match="did you mean 'accuracy'"):
        resample([0], predictions[:, :, :1], 2, "acuracy")


def test_many_rows_take_seconds():
    rng = np.random.default_rng(0)
    gold, predictions = world(rng, 8, 3, 10_000, 0.1)
    started = time.perf_counter()
    judge(resample(gold, predictions, 2, "f1"), names(8))
    assert time.perf_counter() - started < 8


def test_holm_equals_a_hand_computation():
    # sorted: 0.005·4 = 0.02, 0.01·3 = 0.03, 0.03·2 = 0.06, 0.04·1 = 0.04 but not below the one before
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


@pytest.mark.parametrize("freedom", [1, 2, 5, 14])
def test_the_law_is_the_t_distribution_without_rows_the_normal_one_without_seeds_and_their_sum_with_both(freedom):
    for distance in (0.5, 2.0, 8.0):
        assert _Law(0.0, 1.0, freedom).tail(distance) == pytest.approx(2 * t.sf(distance, freedom), rel=1e-2, abs=1e-6)
        assert _Law(1.0, 0.0, freedom).tail(distance) == pytest.approx(2 * norm.sf(distance), rel=1e-9)
    assert _Law(0.0, 4.0, freedom).half_width() == pytest.approx(2 * t.ppf(0.975, freedom), rel=1e-3)
    rng = np.random.default_rng(0)
    drawn = np.abs(2 * rng.standard_normal(400_000) + 3 * rng.standard_t(freedom, 400_000))
    assert _Law(4.0, 9.0, freedom).tail(6.0) == pytest.approx(np.mean(drawn >= 6), rel=0.02)


def test_with_one_seed_the_test_is_mcnemars():
    rng = np.random.default_rng(5)
    gold, predictions = world(rng, 2, 1, 2000, 0.0, better=0.25)
    first, second = (predictions[:, 0] == gold).astype(int)
    only_first, only_second = int(((first == 1) & (second == 0)).sum()), int(((first == 0) & (second == 1)).sum())
    expected = 2 * norm.sf((only_first - only_second) / math.sqrt(only_first + only_second))
    [difference] = judge(resample(gold, predictions, 2, resamples=8000), names(2)).differences
    assert difference.p == pytest.approx(expected, rel=0.15)
    assert difference.mean == pytest.approx((only_first - only_second) / 2000)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [2, 3])
@pytest.mark.parametrize(
    ("methods", "spread", "times"),
    [(2, 0.0, 500), (2, 0.15, 500), (2, 0.4, 500), (3, 0.15, 300), (7, 0.0, 150), (7, 0.15, 150), (7, 0.4, 150)],
)
def test_methods_that_do_not_differ_are_called_different_in_at_most_about_one_of_twenty(methods, spread, seeds, times):
    # spread 0.15 is 2 points of accuracy between seeds, 0.4 is 5: far more than fine-tuning shows
    rng = np.random.default_rng(1000 * methods + seeds)
    any_pair, _ = called_different(rng, methods, seeds, spread, times)
    chance = 2.33 * math.sqrt(0.055 * 0.945 / times)
    assert any_pair <= 0.055 + chance


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [2, 3])
def test_one_method_that_is_less_steady_than_the_others_is_not_called_different_either(seeds):
    any_pair, _ = called_different(np.random.default_rng(seeds), 5, seeds, [0.3, 0.1, 0.1, 0.1, 0.1], 300)
    assert any_pair <= 0.09


@pytest.mark.slow
def test_resampling_two_seeds_as_if_they_were_rows_would_call_far_too_many_pairs_different():
    rng = np.random.default_rng(3)
    wrong = 0
    for _ in range(300):
        gold, predictions = world(rng, 2, 2, 500, 0.4)
        scores = resample(gold, predictions, 2, resamples=300)
        difference = scores.resampled[:, 0] - scores.resampled[:, 1]
        drawn = np.take_along_axis(difference, rng.integers(0, 2, difference.shape), axis=1).mean(1)
        low, high = np.percentile(drawn, [2.5, 97.5])
        wrong += not low <= 0 <= high
    assert wrong / 300 > 0.2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("methods", "seeds", "spread", "better", "least"),
    [(2, 3, 0.1, 1.0, 0.9), (7, 2, 0.05, 1.0, 0.8), (7, 3, 0.1, 1.0, 0.9), (2, 2, 0.05, 1.0, 0.4)],
)
def test_a_clear_difference_is_seen(methods, seeds, spread, better, least):
    # a logit of 1.0 is about 12 points of accuracy; two methods with two seeds know least of their variance
    _, first = called_different(np.random.default_rng(4), methods, seeds, spread, 100, rows=1000, better=better)
    assert first >= least


@pytest.mark.slow
@pytest.mark.parametrize(("methods", "seeds"), [(1, 3), (1, 5), (5, 3), (5, 2)])
@pytest.mark.parametrize("spread", [0.0, 0.15, 0.4])
def test_the_interval_covers_the_true_score(methods, seeds, spread):
    truth = norm.cdf(BASE / math.sqrt(EASE**2 + OWN**2 + NOISE**2 + spread**2))
    rng = np.random.default_rng(methods + seeds)
    covered, times = 0, 600 // methods
    for _ in range(times):
        gold, predictions = world(rng, methods, seeds, 500, spread)
        estimates = judge(resample(gold, predictions, 2, resamples=200), names(methods)).estimates
        covered += sum(e.low <= truth <= e.high for e in estimates.values())
    assert 0.92 <= covered / (times * methods) <= 0.995


def test_differences_are_paired_by_row():
    gold, predictions = world(np.random.default_rng(0), 2, 3, 1000, 0.0)
    analysis = judge(resample(gold, predictions, 2), names(2))
    alone = [e.high - e.low for e in analysis.estimates.values()]
    [difference] = analysis.differences
    assert difference.high - difference.low < 0.8 * math.hypot(*alone)


def test_differences_are_paired_by_seed():
    rng = np.random.default_rng(2)
    gold, predictions = world(rng, 2, 3, 1000, 0.0, better=1.0, shared=0.8)
    [difference] = judge(resample(gold, predictions, 2), names(2)).differences
    assert difference.verdict == "better"
    shifted = predictions.copy()
    shifted[1] = predictions[1][[1, 2, 0]]  # the same scores, with the seeds of another
    [unpaired] = judge(resample(gold, shifted, 2), names(2)).differences
    assert unpaired.mean == pytest.approx(difference.mean)
    assert unpaired.high - unpaired.low > 2 * (difference.high - difference.low)


def test_an_unsteady_method_has_no_say_in_the_others_variance():
    gold, predictions = world(np.random.default_rng(0), 4, 2, 800, 0.05)
    predictions[3, 1] = 1  # collapsed
    scores = resample(gold, predictions, 2)
    with_say, without = judge(scores, names(4)), judge(scores, names(4), unsteady=["m3"])

    def width(analysis):
        pair = analysis.between("m0", "m1")
        return pair.high - pair.low

    assert width(without) < 0.5 * width(with_say)
    own = without.estimates["m3"]
    assert own.high - own.low > 0.2


def test_where_every_row_is_right_the_interval_is_not_empty_and_stays_below_one():
    estimate = judge(resample([0, 1] * 50, np.tile([0, 1] * 50, (1, 2, 1)), 2), ["m"]).estimates["m"]
    assert (estimate.mean, estimate.high) == (1.0, 1.0)
    assert 0.9 < estimate.low < 1


def test_methods_that_agree_on_every_row_are_indistinguishable():
    gold, predictions = world(np.random.default_rng(0), 1, 2, 100, 0.1)
    [difference] = judge(resample(gold, np.repeat(predictions, 2, axis=0), 2), names(2)).differences
    assert (difference.mean, difference.p, difference.verdict) == (0.0, 1.0, "indistinguishable")


def test_between_turns_a_pair_and_knows_of_none():
    analysis = judge(resample(*world(np.random.default_rng(0), 2, 2, 300, 0.0, better=2.0), 2), names(2))
    there, back = analysis.between("m0", "m1"), analysis.between("m1", "m0")
    assert isinstance(there, Difference)
    assert (there.mean, there.low, there.high) == (-back.mean, -back.high, -back.low)
    assert analysis.between("m0", "other") is None


def test_the_average_is_over_tasks_and_leaves_out_a_seed_that_one_task_lacks():
    rng = np.random.default_rng(0)
    gold, first = world(rng, 2, 3, 200, 0.1)
    gold2, second = world(rng, 2, 3, 100, 0.1)
    second[0, 1] = -1
    tasks = [resample(gold, first, 2), resample(gold2, second, 2, seed=1)]
    mean = average(tasks)
    assert mean.observed[1, 2] == pytest.approx((np.mean(first[1, 2] == gold) + np.mean(second[1, 2] == gold2)) / 2)
    estimates = judge(mean, names(2)).estimates
    assert (estimates["m0"].seeds, estimates["m1"].seeds) == (2, 3)


GOLD = [0, 1] * 100


@pytest.mark.parametrize(
    ("predictions", "losses", "says"),
    [
        ([1] * 200, [], "the same label, which is right for 50.0 %"),
        ([1] * 199 + [0], [], None),
        ([1] * 999 + [0], [], "99.9 % of the rows got the same label"),
        (GOLD, [0.7, 0.5, float("nan")], "no longer a number at entry 3 of 3"),
        (GOLD, [0.7, float("inf")], "lower learning rate"),
        (GOLD, [0.7, 0.5, 0.3], None),
        (GOLD, [0.7, None, 0.3], None),
        ([0, 0, 1, 1] * 50, [0.69, 0.70, 0.69, 0.69], "no better than the most frequent label's 50.0 %, and the loss"),
        ([0, 0, 1, 1] * 50, [0.69, 0.5, 0.3], None),
        ([0, 0, 1, 1] * 50, [], None),
        ([0, 1] * 90 + [0] * 20, [0.69, 0.69, 0.69], None),
    ],
)
def test_a_run_that_learned_nothing_is_told_and_one_that_learned_is_not(predictions, losses, says):
    gold = (GOLD * 5)[: len(predictions)]
    said = collapsed(predictions, gold, losses)
    assert said is None if says is None else says in said


def test_one_label_in_the_test_is_not_a_collapse():
    assert collapsed([1, 1, 1], [1, 1, 1], [0.5, 0.1]) is None
