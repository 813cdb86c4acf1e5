"""The scenario: what a run sends, when, to what, and what is promised; read from strict YAML."""

from servebench.scenario.endpoint import Endpoint
from servebench.scenario.engine import Engine, SimEngine, VllmEngine
from servebench.scenario.lengths import LengthLaw
from servebench.scenario.load import Closed, Load, MaxInFlight, Stage, Throttle
from servebench.scenario.loading import load_scenario, resolve_scenario, shipped_scenarios
from servebench.scenario.schema import Scenario, Seeds, SharedPrefix, TrafficClass, Workload
from servebench.scenario.slo import Objective, Slo

__all__ = [
    "Closed",
    "Endpoint",
    "Engine",
    "LengthLaw",
    "Load",
    "MaxInFlight",
    "Objective",
    "Scenario",
    "Seeds",
    "SharedPrefix",
    "SimEngine",
    "Slo",
    "Stage",
    "Throttle",
    "TrafficClass",
    "VllmEngine",
    "Workload",
    "load_scenario",
    "resolve_scenario",
    "shipped_scenarios",
]
