package view

import "github.com/berthrun/berth/internal/pod/record"

// States counts the sandboxes and the containers by the states of their records, those that are being made
// included. Every state has an entry.
func (v *View) States() (sandboxes map[record.SandboxState]int, containers map[record.ContainerState]int) {
	sandboxes = map[record.SandboxState]int{
		record.SandboxCreating: 0, record.SandboxRestoring: 0, record.SandboxReady: 0, record.SandboxStopping: 0, record.SandboxStopped: 0, record.SandboxRemoving: 0,
	}
	containers = map[record.ContainerState]int{
		record.ContainerCreating: 0, record.ContainerCreated: 0, record.ContainerStarting: 0, record.ContainerRunning: 0, record.ContainerExited: 0,
	}
	for _, rec := range v.records.Sandboxes.All() {
		sandboxes[rec.State]++
	}
	for _, rec := range v.records.Containers.All() {
		containers[rec.State]++
	}
	return sandboxes, containers
}
