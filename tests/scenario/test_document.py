import pytest

from servebench.errors import UsageError
from servebench.scenario.document import MAX_VALUES, parse_document, parse_value, read_document


def test_values_keep_their_line():
    document = parse_document("a: 1\nb:\n  c: [x,\n    {d: 2}]\n", "f.yaml")
    assert document.data == {"a": 1, "b": {"c": ["x", {"d": 2}]}}
    assert document.locate(("b", "c", 1, "d")) == ("f.yaml:4", ("b", "c", 1, "d"))
    assert document.locate(("b", "c")) == ("f.yaml:3", ("b", "c"))


def test_steps_that_were_not_written_are_skipped():
    document = parse_document("workload:\n  input_tokens: 5\n", "f.yaml")
    assert document.locate(("workload", "classes", 0, "input_tokens", "fixed")) == (
        "f.yaml:2",
        ("workload", "input_tokens"),
    )
    assert document.locate(("slo",)) == ("f.yaml:1", ())


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"),
        ("on", "on"),
        ("true", True),
        ("010", 10),
        ("1:30", "1:30"),
        ("2026-01-31", "2026-01-31"),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("-3", -3),
        ("0x10", "0x10"),
        ("1_000", "1_000"),
        ("~", None),
        ("", None),
        ("8k", "8k"),
        ("'5'", "5"),
        ("{a: [1]}", {"a": [1]}),
    ],
)
def test_scalars_follow_yaml_1_2(text, value):
    parsed = parse_value(text)
    assert parsed == value
    assert type(parsed) is type(value)


def test_an_anchor_may_be_used_twice():
    assert parse_document("a: &x {n: 1}\nb: *x\n", "f").data == {"a": {"n": 1}, "b": {"n": 1}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", 'f.yaml:3: key "a" is given twice'),
        ("b:\n  a: 1\n  a: 1\n", 'f.yaml:3: key "a" is given twice'),
        ("a: [1\nb: 2", "f.yaml:2: not valid YAML: "),
        ("a: 1\n\tb: 2", "f.yaml:2: not valid YAML: "),
        ("a: *x", "f.yaml:1: not valid YAML: found undefined alias"),
        ("a: 1\n---\nb: 1", "f.yaml:2: not valid YAML: "),
        ("a: \x00", "f.yaml: not valid YAML: "),
        ("", "f.yaml: expected a mapping"),
        ("- 1", "f.yaml: expected a mapping"),
        ("chat", "f.yaml: expected a mapping"),
        ("? [a]\n: 1", "f.yaml:1: a key must be a word"),
        ("a: !!python/name:os.system x", "f.yaml:1: the tag "),
        ("a: !!binary aGk=", "f.yaml:1: the tag "),
        ("a: &a [*a]", "f.yaml:1: too many or too deeply nested values"),
    ],
)
def test_what_is_not_plain_yaml_is_one_line_that_says_where(text, message):
    with pytest.raises(UsageError) as caught:
        parse_document(text, "f.yaml")
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_aliases_cannot_expand_without_end():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 8)}]" for n in range(1, 9)]
    assert MAX_VALUES < 8**9
    with pytest.raises(UsageError, match="too many"):
        parse_document("\n".join(lines), "bomb.yaml")


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"none\.yaml: cannot be read: No such file"):
        read_document(tmp_path / "none.yaml")
    (tmp_path / "latin.yaml").write_bytes("a: é".encode("latin-1"))
    with pytest.raises(UsageError, match=r"latin\.yaml: cannot be read: not UTF-8 text"):
        read_document(tmp_path / "latin.yaml")


def test_a_byte_order_mark_is_ignored(tmp_path):
    (tmp_path / "bom.yaml").write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert read_document(tmp_path / "bom.yaml").data == {"a": 1}
