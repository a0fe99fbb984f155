r"""Choose a parallel training strategy, and know why.

::

     model        cluster        job                what is given
         \           |           /
                  layout                            what may be chosen (and why it cannot run)
                     |
     ops  ->  cost/ memory  compute  comm           what each part costs
                     |     schedules/               in which order the stages work
                cost/step                           one step: seconds, bytes, parts, interval
                     |
                  search                            reject, estimate, rank
                     |
                  plan.py  ------ plan.json ------>  executor/            run it
                                                         |
     compare  <------- measurement.json ----------  executor/measure      what happened
         |
       fit  ->  calibration  ->  back into cost/
"""

__version__ = "0.1.0"

_PUBLIC = {
    "recommend": "planner.api",
    "estimate": "planner.api",
    "Recommendation": "planner.api",
    "Appraisal": "planner.appraisal",
    "Cluster": "planner.cluster",
    "Job": "planner.job",
    "Layout": "planner.layout",
    "Model": "planner.model",
    "Plan": "planner.plan",
    "read_plan": "planner.plan",
    "write_plan": "planner.plan",
    "validate": "planner.validate",
}

__all__ = [
    "Appraisal",
    "Cluster",
    "Job",
    "Layout",
    "Model",
    "Plan",
    "Recommendation",
    "__version__",
    "estimate",
    "read_plan",
    "recommend",
    "validate",
    "write_plan",
]


def __getattr__(name: str) -> object:
    """Load a public name when it is asked for: the command line starts without numpy."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'planner' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_PUBLIC[name]), name)
