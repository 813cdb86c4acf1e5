"""What comparisons of runs share: effects and their tests, differences of set-ups, answers, side effects."""
