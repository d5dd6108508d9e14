package metrics

import "slices"

// Type is the type of a metric, as Prometheus names it.
type Type string

// The types of metrics.
const (
	Counter   Type = "counter"
	Gauge     Type = "gauge"
	Histogram Type = "histogram"
)

// Family is a metric with all its labels.
type Family struct {
	Name   string
	Type   Type
	Labels []string
	// Help is one sentence.
	Help string
}

// The metrics of events, which a Recorder counts when they happen.
const (
	operationsTotal    = "berth_operations_total"
	operationSeconds   = "berth_operation_duration_seconds"
	operationsInFlight = "berth_operations_in_flight"
	jobsTotal          = "berth_jobs_total"
	jobSeconds         = "berth_job_duration_seconds"
	jobStageSeconds    = "berth_job_stage_duration_seconds"
	jobsResumedTotal   = "berth_jobs_resumed_total"
	jobsSlowTotal      = "berth_job_stage_slow_total"
	cniTotal           = "berth_cni_operations_total"
	cniErrorsTotal     = "berth_cni_operation_errors_total"
	cniSeconds         = "berth_cni_operation_duration_seconds"
	pullsTotal         = "berth_image_pulls_total"
	pullSeconds        = "berth_image_pull_duration_seconds"
	pullBytesTotal     = "berth_image_pull_bytes_total"
	pullsInFlight      = "berth_image_pulls_in_flight"
	exitsTotal         = "berth_container_exits_total"
	leaksFoundTotal    = "berth_leaks_found_total"
	leaksRepairedTotal = "berth_leaks_repaired_total"
	buildInfo          = "berth_build_info"
)

// The metrics that are read at a scrape; see Source.
const (
	Jobs                 = "berth_jobs"
	JobOldestStage       = "berth_job_oldest_stage_seconds"
	Pods                 = "berth_pods"
	Containers           = "berth_containers"
	EventsPublished      = "berth_events_published_total"
	EventsDropped        = "berth_events_dropped_total"
	EventSubscribers     = "berth_event_subscribers"
	Images               = "berth_images"
	ImagesBytes          = "berth_images_bytes"
	DiskBytes            = "berth_disk_used_bytes"
	DiskInodes           = "berth_disk_used_inodes"
	PoolSize             = "berth_pool_size"
	PoolReady            = "berth_pool_ready"
	PoolHits             = "berth_pool_hits_total"
	PoolMisses           = "berth_pool_misses_total"
	ContainerStarts      = "berth_container_creates_total"
	StartReasons         = "berth_container_creates_libcontainer_total"
	LogReadBytes         = "berth_log_read_bytes_total"
	LogWrittenBytes      = "berth_log_written_bytes_total"
	LogWrittenLines      = "berth_log_written_lines_total"
	LogDiscardedBytes    = "berth_log_discarded_bytes_total"
	LogThrottled         = "berth_log_throttled_seconds_total"
	LogPendingBytes      = "berth_log_pending_bytes"
	LogFaults            = "berth_log_faults"
	SupervisorUp         = "berth_supervisor_up"
	SupervisorFDs        = "berth_supervisor_open_fds"
	SupervisorMaxFDs     = "berth_supervisor_max_fds"
	ConfigReloadOK       = "berth_config_last_reload_successful"
	ConfigNeedRestart    = "berth_config_keys_need_restart"
	EngineCalls          = "berth_engine_calls_total"
	EngineCallErrors     = "berth_engine_call_errors_total"
	EngineCallTimeouts   = "berth_engine_call_timeouts_total"
	EngineCallSeconds    = "berth_engine_call_seconds_total"
	sourceUp             = "berth_metrics_source_up"
	sourceSeconds        = "berth_metrics_source_duration_seconds"
	maxValuesOfOneLabel  = 100
	otherValue           = "other"
	secondsOfOneSource   = 5
	scrapesAtOnce        = 4
	operationOfListeners = "GetContainerEvents"
)

// eventFamilies are counted when something happens.
func eventFamilies() []Family {
	operation := []string{"api", "method"}
	return []Family{
		{operationsTotal, Counter, []string{"api", "method", "code"}, "Calls of the daemon's socket that have ended, by the code of gRPC. api is runtime or image (CRI), or berth (its own)."},
		{operationSeconds, Histogram, operation, "Duration of calls. Streams of events, which last as long as their clients, are not in it."},
		{operationsInFlight, Gauge, operation, "Calls under way."},
		{jobsTotal, Counter, []string{"kind", "result"}, "Jobs that have ended: ok, failed or cancelled."},
		{jobSeconds, Histogram, []string{"kind"}, "Duration of jobs, the wait for a job before included."},
		{jobStageSeconds, Histogram, []string{"kind", "stage"}, "Duration of the stages of jobs."},
		{jobsResumedTotal, Counter, []string{"kind"}, "Jobs that the daemon started by itself to finish what a former daemon, or a reboot, had left."},
		{jobsSlowTotal, Counter, []string{"kind", "stage"}, "Warnings of jobs that stay in one stage: after 30 seconds, and each time that it has lasted twice as long."},
		{cniTotal, Counter, []string{"plugin", "operation"}, "Calls of CNI plugins (ADD, DEL, CHECK, GC, STATUS, VERSION), those of IPAM plugins in berth's process included."},
		{cniErrorsTotal, Counter, []string{"plugin", "operation"}, "Calls of CNI plugins that failed."},
		{cniSeconds, Histogram, []string{"plugin", "operation"}, "Duration of calls of CNI plugins."},
		{pullsTotal, Counter, []string{"result"}, "Pulls of images that have ended: ok, cancelled (all clients have left), or the kind of the error. Callers that share a pull count once, and so does a pull that tries several registries, by its final result."},
		{pullSeconds, Histogram, nil, "Duration of pulls, unpacking included."},
		{pullBytesTotal, Counter, nil, "Bytes of layers that pulls have fetched, compressed. Layers that were there are not in it."},
		{pullsInFlight, Gauge, nil, "Pulls under way."},
		{exitsTotal, Counter, []string{"reason"}, "Containers that have exited, by the reason that their statuses have: Completed, Error, OOMKilled, StartError and so on."},
		{leaksFoundTotal, Counter, []string{"kind"}, "Objects that no record owns: sandbox and container (of the engine), attachment, address (of a CNI plugin), files (of a sandbox or container, on disk)."},
		{leaksRepairedTotal, Counter, []string{"kind"}, "Those of them that berth has removed."},
		{buildInfo, Gauge, []string{"version", "commit", "goversion"}, "Always 1."},
	}
}

// scrapedFamilies are read at a scrape.
func scrapedFamilies() []Family {
	call := []string{"call"}
	return []Family{
		{Jobs, Gauge, []string{"kind", "state"}, "Jobs that run, and that wait for the job before of the same pod or container."},
		{JobOldestStage, Gauge, []string{"kind"}, "How long the job that is longest in one stage has been in it."},
		{Pods, Gauge, []string{"state"}, "Sandboxes by the state of their records: creating, restoring, ready, stopping, stopped, removing."},
		{Containers, Gauge, []string{"state"}, "Containers by the state of their records: creating, created, starting, running, exited."},
		{EventsPublished, Counter, nil, "Events of pods and containers."},
		{EventsDropped, Counter, nil, "Events that a subscriber did not get, because it read too slowly and was cut off."},
		{EventSubscribers, Gauge, nil, "Clients that follow the events."},
		{Images, Gauge, nil, "Images in the store."},
		{ImagesBytes, Gauge, nil, "Compressed size of all images; layers that several images have count several times."},
		{DiskBytes, Gauge, []string{"area"}, "What is used on disk: by images (content and layers), and by containers (what they have written)."},
		{DiskInodes, Gauge, []string{"area"}, "The same in inodes."},
		{PoolSize, Gauge, []string{"pool"}, "Objects that a pool keeps ready."},
		{PoolReady, Gauge, []string{"pool"}, "Objects that are ready now."},
		{PoolHits, Counter, []string{"pool"}, "Objects that were ready when they were needed."},
		{PoolMisses, Counter, []string{"pool"}, "Objects that had to be made when they were needed."},
		{ContainerStarts, Counter, []string{"starter"}, "Creates of containers, by what created them: own (the fast path), libcontainer, or a handler. It counts since the start of the supervisor, as the metrics of logs do."},
		{StartReasons, Counter, []string{"reason"}, "Creates that took libcontainer, by the reason."},
		{LogReadBytes, Counter, nil, "Output that the supervisor has read from containers."},
		{LogWrittenBytes, Counter, nil, "Bytes written to log files of containers, with the heads of lines."},
		{LogWrittenLines, Counter, nil, "Lines written to log files of containers."},
		{LogDiscardedBytes, Counter, nil, "Output without a log file to go to, because somebody deleted the file."},
		{LogThrottled, Counter, nil, "How long containers have waited, all together, because they write more than runtime.log_rate_mib to their logs."},
		{LogPendingBytes, Gauge, nil, "Output that is read and not yet in a log file: how far logs lag behind."},
		{LogFaults, Gauge, nil, "Containers whose logs cannot be written now; such containers wait when their pipes are full."},
		{SupervisorUp, Gauge, nil, "1 if the supervisor answers. Its keeper is not in it."},
		{SupervisorFDs, Gauge, nil, "Descriptors that the supervisor has open."},
		{SupervisorMaxFDs, Gauge, nil, "Limit of them."},
		{ConfigReloadOK, Gauge, nil, "1 if the daemon has applied the configuration that it has read last, 0 if it has refused it at a reload, and runs as before."},
		{ConfigNeedRestart, Gauge, nil, "Keys that the last accepted configuration changes, and that the daemon applies at its next start only."},
		{EngineCalls, Counter, call, "Calls of the Docker Engine (engine docker)."},
		{EngineCallErrors, Counter, call, "Calls of the Docker Engine that failed."},
		{EngineCallTimeouts, Counter, call, "Calls of the Docker Engine that it did not answer in time."},
		{EngineCallSeconds, Counter, call, "Duration of all calls of the Docker Engine together."},
	}
}

// ownFamilies are about the scrape itself.
func ownFamilies() []Family {
	return []Family{
		{sourceUp, Gauge, []string{"source"}, "1 if the figures of this part could be read for this scrape, 0 if some are missing."},
		{sourceSeconds, Gauge, []string{"source"}, "How long that took."},
	}
}

// Families are all metrics of berth's own, without those of Go and of the process.
func Families() []Family {
	return slices.Concat(eventFamilies(), scrapedFamilies(), ownFamilies())
}
