sptlib: data/study holds exported results, which are only read; name a run store with --store or $SPTLIB_STORE
