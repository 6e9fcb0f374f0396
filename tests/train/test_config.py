"""The schema: strict, with the nearest key; TOML in and out; a hash that changes with every field."""

import pytest

from peftlab.errors import UserError
from peftlab.peft import METHODS
from peftlab.train.config import make_config, read_config


def test_what_is_written_is_read_again():
    config = read_config('base = "minilm"\n[method]\nname = "lora"\nrank = 4\n[train]\nsteps = 7\n', ["train.lr=1e-3"])
    assert (config.train.steps, config.train.lr, config.build_method().rank) == (7, 1e-3, 4)
    assert read_config(config.to_toml()) == config
    assert read_config(config.to_toml()).fingerprint("") == config.fingerprint("")


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_default(name):
    assert make_config({"method": {"name": name}}).build_method() == METHODS[name]()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bse = 'x'", "unknown key in the configuration 'bse': did you mean 'base'"),
        ("[train]\nstep = 3", "unknown key of .train. in the configuration 'step': did you mean 'steps'"),
        ("[train]\nsteps = 0", "train.steps in the configuration is 0: input should be greater than or equal to 1"),
        ("[train]\nlr = 'fast'", "train.lr in the configuration is 'fast'"),
        ("[train]\nschedule = 'liner'", "train.schedule in the configuration is 'liner'"),
        ("[method]\nname = 'lorra'", "unknown method in the configuration 'lorra': did you mean 'lora'"),
        ("[method]\nname = 'lora'\nrnk = 3", "unknown setting of lora in the configuration 'rnk': did you mean 'rank'"),
        ("[method]\nname = 'lora'\nrank = 0", "rank is 0"),
        ("x = ", "is not valid TOML"),
    ],
)
def test_a_mistake_names_the_key(text, message):
    with pytest.raises(UserError, match=message) as caught:
        read_config(text)
    assert "\n" not in str(caught.value)


def test_the_fingerprint_changes_with_configuration_and_data():
    one = make_config({})
    assert one.fingerprint("a") == make_config({}).fingerprint("a")
    assert len({one.fingerprint("a"), one.fingerprint("b"), make_config({"train": {"seed": 1}}).fingerprint("a")}) == 3


def test_an_override_without_a_value_is_told():
    with pytest.raises(UserError, match=r"has no value: write section.key=value"):
        read_config("", ["train.lr"])


def test_the_learning_rate_is_the_method_s_and_higher_for_a_model_that_starts_from_nothing():
    adapted = read_config('[method]\nname = "full"').completed()
    fresh = read_config('[language_model]\nname = "x.txt"\n[model]\nkind = "decoder"').completed()
    assert adapted.train.lr == adapted.build_method().lr < fresh.train.lr
    assert read_config('[model]\nkind = "decoder"\n[train]\nlr = 1e-5').completed().train.lr == 1e-5
