"""Events and READS records as rows of the lineage store. Pure: what the operator's SQL sees is made here and nowhere else."""
