import pytest

from servebench.errors import UsageError
from servebench.experiment.arms import arms_of_variable, check_arms, keys_of, parse_arm
from servebench.experiment.variables import parse_vary


def test_an_arm_is_its_name_and_its_settings():
    arm = parse_arm("Cand: vllm.max-num-seqs=64 slo.ttft='p95 < 1s' endpoint=http://127.0.0.1:8001/v1/ model=X")
    assert arm.name == "cand"
    assert arm.overrides == ("engine.vllm.flags.max-num-seqs=64", "slo.ttft=p95 < 1s")
    assert (arm.endpoint, arm.model) == ("http://127.0.0.1:8001", "X")
    assert arm.keys == ("engine.vllm.flags.max-num-seqs", "slo.ttft")


def test_an_arm_may_change_nothing():
    arm = parse_arm("base:")
    assert (arm.name, arm.overrides, arm.endpoint, arm.model) == ("base", (), None, None)


def test_the_hook_is_told_every_setting():
    arm = parse_arm("a: vllm.max-num-seqs=64 hook.token-budget=512 vllm.enforce-eager=true name='\"q\"'")
    assert arm.environ == {
        "SERVEBENCH_ARM": "a",
        "SERVEBENCH_ARM_VLLM_MAX_NUM_SEQS": "64",
        "SERVEBENCH_ARM_TOKEN_BUDGET": "512",
        "SERVEBENCH_ARM_VLLM_ENFORCE_EAGER": "true",
        "SERVEBENCH_ARM_NAME": "q",
    }
    assert not any("budget" in override for override in arm.overrides)


def test_the_values_of_a_variable_are_arms_named_after_them():
    arms = arms_of_variable(parse_vary("vllm.max-num-batched-tokens=2048,512"))
    assert [arm.name for arm in arms] == ["2048", "512"]
    assert arms[0].overrides == ("engine.vllm.flags.max-num-batched-tokens=2048",)
    assert arms[0].environ["SERVEBENCH_ARM_VLLM_MAX_NUM_BATCHED_TOKENS"] == "2048"
    assert keys_of(arms) == ("engine.vllm.flags.max-num-batched-tokens",)
    words = arms_of_variable(parse_vary("slo.ttft=p95 < 800ms,p95 > 800ms,{}"))
    assert [arm.name for arm in words] == ["p95-800ms", "p95-800ms-2", "empty"]
    assert [arm.name for arm in arms_of_variable(parse_vary("hook.mode=fast,slow"))] == ["fast", "slow"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("vllm.max-num-seqs=64", 'expected "NAME: KEY=VALUE'),
        ("base", 'expected "NAME: KEY=VALUE'),
        ("a/b: seed=1", "'a/b' is no name"),
        (": seed=1", "'' is no name"),
        ("a: seed", "'seed' is no KEY=VALUE"),
        ("a: seed=1 seed=2", "seed is given twice"),
        ("a: vllm.max-num-seqs=1 vllm.max_num_seqs=2", "one and the same"),
        ("a: seed='1", "no closing quotation"),
        ("a: endpoint=ftp://x", "ftp://x"),
        ("a: endpoint=", "endpoint is empty"),
        ("a: model=''", "model is empty"),
    ],
)
def test_what_cannot_be_read_is_said_in_one_line(text, said):
    with pytest.raises(UsageError) as caught:
        parse_arm(text)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["a:"], "two arms at least"),
        (["a: seed=1", "A: seed=2"], "two arms are named 'a'"),
        (["a: seed=1 name=x", "b: name=x seed=1"], "arms 'a' and 'b' are the same"),
    ],
)
def test_arms_that_compare_nothing_are_refused(texts, said):
    with pytest.raises(UsageError, match=said):
        check_arms([parse_arm(text) for text in texts])


def test_arms_that_differ_in_one_thing_only_are_accepted():
    check_arms([parse_arm(text) for text in ("a:", "b: seed=2", "c: model=m", "d: endpoint=sim", "e: hook.x=1")])


def test_arms_that_differ_in_a_secret_are_still_two_when_they_were_stored_without_it():
    check_arms([parse_arm(f"{name}: endpoint.headers.x-tenant='[withheld]'") for name in ("a", "b")])


def test_a_secret_is_not_varied_since_its_values_would_name_the_arms():
    with pytest.raises(UsageError, match=r"a secret cannot be varied") as caught:
        parse_vary("endpoint.headers.Authorization=canary-one,canary-two")
    assert "canary" not in str(caught.value)
    assert parse_vary("vllm.long-prefill-token-threshold=64,256").values == ("64", "256")
