import subprocess
import sys

from servebench.analysis import stats


def test_every_public_name_is_there_and_sorted() -> None:
    assert stats.__all__ == sorted(stats.__all__)
    assert all(hasattr(stats, name) for name in stats.__all__)


def test_importing_it_does_not_pay_for_scipy() -> None:
    """Every run imports it for the intervals within the run."""
    code = "import sys, servebench.analysis.stats; print('scipy' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"
