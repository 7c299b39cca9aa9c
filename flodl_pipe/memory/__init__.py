"""Who may hold how many bytes: probes of the machine, the budget arithmetic, and the ledger of what was granted.

::

    probe (host, control group)  --+
    disk.probe_disk (disk)       --+-->  budget, device_budget, depth, disk  -->  Grant (bytes, why)  -->  ledger
    a device's own figures       --+        pure arithmetic                                                who holds it

``probe`` and ``disk`` look at the machine; everything else is arithmetic on what they saw, so that ``plan`` can reckon
for a machine that is not here. ``budget`` is the host: ring and RAM cache. ``device_budget`` is a device: what may be
held there, whether a whole set is, and what the sample pool gets beside the steps in flight, of which ``depth`` says
how many. ``depth_policy`` says when that is asked again and who decides, ``ladder`` what is given up when the device is
out of memory after all. The ``ledger`` is the one book in which loaders of a process see each other.
"""
