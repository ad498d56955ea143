create index cluster_being_made on cluster (state_since) where state in ('creating', 'initializing');
