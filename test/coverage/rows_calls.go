package main

// callRows are the calls of RuntimeService and ImageService.
func callRows() []row {
	const pods = "Off by default, and needs CRIU: see [checkpoint.md](checkpoint.md#pods). berth has no options. An engine `docker` refuses both calls."
	return []row{
		{name: "Version", test: "TestRPC", covers: []string{"Version"}},
		{name: "RunPodSandbox", test: "TestRPC", covers: []string{"RunPodSandbox"}, note: "`runtime_handler` is a table of the configuration ([handlers.md](handlers.md); TestHandlers), or \"\". berth refuses any other by name."},
		{name: "StopPodSandbox", test: "TestRPC", covers: []string{"StopPodSandbox"}},
		{name: "RemovePodSandbox", test: "TestRPC", covers: []string{"RemovePodSandbox"}},
		{name: "PodSandboxStatus", test: "TestRPCVerboseInfo", covers: []string{"PodSandboxStatus"}},
		{name: "ListPodSandbox", test: "TestRPC", covers: []string{"ListPodSandbox"}},
		{name: "StreamPodSandboxes", test: "TestRPCStreamedLists", covers: []string{"StreamPodSandboxes"}},
		{name: "CreateContainer", test: "TestRPC", covers: []string{"CreateContainer"}},
		{name: "Start/Stop/RemoveContainer", test: "TestRPC", covers: []string{"{Start,Stop,Remove}Container"}},
		{name: "ListContainers / ContainerStatus", test: "TestRPC", covers: []string{"ListContainers", "ContainerStatus"}},
		{name: "StreamContainers", test: "TestRPCStreamedLists", covers: []string{"StreamContainers"}},
		{name: "UpdateContainerResources", test: "TestFieldsOfResources", covers: []string{"UpdateContainerResources"}},
		{name: "ReopenContainerLog", test: "TestRPC", covers: []string{"ReopenContainerLog"}},
		{name: "ExecSync", test: "TestExecSync", whole: true, covers: []string{"ExecSync"}},
		{name: "Exec / Attach / PortForward", test: "TestRPC", covers: []string{"Exec", "Attach", "PortForward"}},
		{
			name: "ContainerStats / ListContainerStats / StreamContainerStats", test: "TestRPCStats",
			covers: []string{"{,List,Stream}ContainerStats"}, needs: []string{pressure},
		},
		{
			name: "PodSandboxStats / List / StreamPodSandboxStats", test: "TestRPCStats",
			covers: []string{"{,List,Stream}PodSandboxStats"}, needs: []string{pressure},
		},
		{name: "UpdateRuntimeConfig", test: "TestRPC", covers: []string{"UpdateRuntimeConfig"}},
		{name: "Status", test: "TestRPCVerboseInfo", covers: []string{"Status"}},
		{name: "CheckpointContainer", test: "TestCheckpoint", whole: true, covers: []string{"CheckpointContainer"}, note: "Off by default, and needs CRIU: see [checkpoint.md](checkpoint.md). CreateContainer restores archives."},
		{name: "CheckpointPod", test: "TestCheckpointPod", whole: true, covers: []string{"CheckpointPod"}, note: pods},
		{name: "RestorePod", test: "TestRestorePod", whole: true, covers: []string{"RestorePod"}, note: pods},
		{name: "GetContainerEvents", test: "TestRPCGetContainerEvents", whole: true, covers: []string{"GetContainerEvents"}},
		{
			name: "ListMetricDescriptors / ListPodSandboxMetrics / StreamPodSandboxMetrics", test: "TestRPCStats",
			covers: []string{"ListMetricDescriptors", "{List,Stream}PodSandboxMetrics"}, needs: []string{pressure},
		},
		{name: "RuntimeConfig", test: "TestRPC", covers: []string{"RuntimeConfig"}},
		{name: "UpdatePodSandboxResources", test: "TestFieldsOfResources", covers: []string{"UpdatePodSandboxResources"}},
		{name: "ListImages / StreamImages", test: "TestRPCStreamedLists", covers: []string{"ListImages", "StreamImages"}},
		{name: "ImageStatus, PullImage, RemoveImage", test: "TestRPC", covers: []string{"ImageStatus", "PullImage", "RemoveImage"}, note: "With `runtime_handler` they are about the image for the platform of that handler ([platforms](howto/platforms.md); TestPlatformOfAHandler)."},
		{name: "ImageFsInfo", test: "TestRPC", covers: []string{"ImageFsInfo"}},
	}
}
