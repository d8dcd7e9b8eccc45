"""An index on several processes or machines: built by blocks, served by shards with replicas. Ray is the extra `ray`."""
