"""The order in which settings win: argument > environment > file > default."""

from pathlib import Path

import pytest

from rowlock import errors
from rowlock.config import load, load_server
from rowlock.jobs import Jobs


def test_the_nearest_source_wins(tmp_path: Path) -> None:
    file = tmp_path / "jobs.toml"
    file.write_text('[rowlock]\nurl = "sqlite:///file.db"\nby = "file"\nmigrate = false\n')
    environ = {"ROWLOCK_CONFIG": str(file), "ROWLOCK_BY": "env", "ROWLOCK_MIGRATE": "yes"}
    settings = load({"url": "sqlite:///argument.db", "by": None, "migrate": None}, environ=environ)
    assert (settings.url, settings.by, settings.migrate) == ("sqlite:///argument.db", "env", True)
    assert load({}, config=file, environ={}).by == "file"


def test_a_file_in_the_working_directory_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(errors.InvalidInput, match="ROWLOCK_URL"):
        load({}, environ={})
    Path("rowlock.toml").write_text('url = "sqlite:///here.db"\n')
    assert load({}, environ={}).url == "sqlite:///here.db"


def test_jobs_reads_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROWLOCK_URL", "sqlite:///env.db")
    assert Jobs().settings.url == "sqlite:///env.db"


def test_listen_url_comes_from_all_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "jobs.toml"
    file.write_text('url = "postgresql://pooler/shop"\nlisten_url = "postgresql://ann:s3cret@file/shop"\n')
    monkeypatch.delenv("ROWLOCK_URL", raising=False)
    assert load({}, config=file, environ={}).listen_url == "postgresql://ann:s3cret@file/shop"
    monkeypatch.setenv("ROWLOCK_LISTEN_URL", "postgresql://ann:s3cret@env/shop")
    settings = Jobs(config_file=file).settings
    assert settings.listen_url == "postgresql://ann:s3cret@env/shop"
    assert "s3cret" not in repr(settings)
    named = Jobs(config_file=file, listen_url="postgresql://argument/shop")
    assert named.settings.listen_url == "postgresql://argument/shop"
    assert Jobs("sqlite://").settings.listen_url is not None  # SQLite does not use it, and accepts it


@pytest.mark.parametrize("text", ['public_url = "{}"', '[server]\npublic_url = "{}"'])
def test_the_public_url_is_one_for_clients_and_the_server(tmp_path: Path, text: str) -> None:
    file = tmp_path / "rowlock.toml"
    file.write_text(text.format("https://jobs.example.com/queue/"))
    assert load({"url": "sqlite://"}, config=file, environ={}).public_url == "https://jobs.example.com/queue"
    assert load_server({}, config=file, environ={}).public_url == "https://jobs.example.com/queue"
    environ = {"ROWLOCK_PUBLIC_URL": "https://env.example.com"}
    assert load({"url": "sqlite://"}, config=file, environ=environ).public_url == "https://env.example.com"
    assert load_server({}, config=file, environ=environ).public_url == "https://env.example.com"
    file.write_text(text.format("jobs.example.com"))
    with pytest.raises(errors.InvalidInput) as refused:
        load({"url": "sqlite://"}, config=file, environ={})
    assert refused.value.code == "bad_url"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("url = ", "bad_toml"),
        ("rowlock = 7", "bad_toml"),
        ("urk = 'x'", "unknown_setting"),
        ("url = 7", "bad_setting"),
        ("url = ''", "bad_setting"),
        ("migrate = 'yes'", "bad_setting"),
    ],
)
def test_files_that_are_wrong_say_where(tmp_path: Path, text: str, code: str) -> None:
    file = tmp_path / "rowlock.toml"
    file.write_text(text)
    with pytest.raises(errors.InvalidInput, match=r"rowlock\.toml") as refused:
        load({}, config=file, environ={})
    assert refused.value.code == code


def test_other_mistakes(tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidInput, match="there is no file"):
        load({}, config=tmp_path / "missing.toml", environ={})
    with pytest.raises(errors.InvalidInput, match="must be one of") as refused:
        load({"url": "sqlite://"}, environ={"ROWLOCK_MIGRATE": "perhaps"})
    assert refused.value.field == "ROWLOCK_MIGRATE"
    with pytest.raises(errors.InvalidInput, match="redis:// is not supported"):
        Jobs("redis://localhost")


def test_an_empty_variable_is_not_set() -> None:
    assert load({"url": "sqlite://"}, environ={"ROWLOCK_URL": "", "ROWLOCK_BY": ""}).by == "python"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ann:hunter/2secret@db/shop",
        "postgresql://ann:hunter#2secret@db/shop",
        "postgresql://ann:12/secret@db/shop",
        "postgresql://ann:secret@db:port/shop",
        "postgresql://ann:s\u2100ecret@db/shop",
        "sqlite://ann:secret@db/shop",
        b"postgresql://ann:secret@db/shop",
    ],
)
def test_no_message_about_a_url_holds_its_password(url: str) -> None:
    with pytest.raises(errors.InvalidInput) as refused:
        Jobs(url)
    assert "secret" not in str(refused.value)
    assert "hunter" not in str(refused.value)


def test_the_worker_s_settings_are_numbers() -> None:
    environ = {"ROWLOCK_CONCURRENCY": "4", "ROWLOCK_LEASE": "12.5", "ROWLOCK_POLL": "2", "ROWLOCK_GRACE": "0"}
    settings = load({"url": "sqlite://"}, environ=environ)
    assert (settings.concurrency, settings.lease, settings.poll, settings.grace) == (4, 12.5, 2.0, 0.0)
    assert load({"url": "sqlite://", "lease": 20}, environ=environ).lease == 20.0
    for name, text in {"CONCURRENCY": "2.5", "LEASE": "long"}.items():
        with pytest.raises(errors.InvalidInput, match="number") as refused:
            load({"url": "sqlite://"}, environ={f"ROWLOCK_{name}": text})
        assert refused.value.field == f"ROWLOCK_{name}"
