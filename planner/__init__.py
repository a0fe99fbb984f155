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
