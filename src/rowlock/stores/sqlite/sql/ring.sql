UPDATE _jobs_doorbell SET rings = rings + 1
