package nri

import (
	"context"
	"fmt"
	"slices"

	"github.com/containerd/nri/pkg/api"

	"github.com/berthrun/berth/internal/errs"
)

// The events follow. An error is a plugin's refusal, or the silence of one whose failure policy
// says that the request fails; it names the plugin and the event. The failure of any other plugin
// is logged and shown by Info, and no error.

// RunPodSandbox reports a pod that is about to be ready.
func (h *Host) RunPodSandbox(ctx context.Context, pod *api.PodSandbox) error {
	return h.named("RunPodSandbox", h.adaptation.RunPodSandbox(ctx, &api.RunPodSandboxRequest{Pod: pod}))
}

// UpdatePodSandbox reports new limits before they hold.
func (h *Host) UpdatePodSandbox(ctx context.Context, pod *api.PodSandbox, overhead, limits *api.LinuxResources) error {
	_, err := h.adaptation.UpdatePodSandbox(ctx, &api.UpdatePodSandboxRequest{Pod: pod, OverheadLinuxResources: overhead, LinuxResources: limits})
	return h.named("UpdatePodSandbox", err)
}

// PostUpdatePodSandbox reports that new limits hold.
func (h *Host) PostUpdatePodSandbox(ctx context.Context, pod *api.PodSandbox) error {
	return h.named("PostUpdatePodSandbox", h.adaptation.PostUpdatePodSandbox(ctx, &api.PostUpdatePodSandboxRequest{Pod: pod}))
}

// StopPodSandbox reports a pod whose containers have ended and whose network is still there.
func (h *Host) StopPodSandbox(ctx context.Context, pod *api.PodSandbox) error {
	return h.named("StopPodSandbox", h.adaptation.StopPodSandbox(ctx, &api.StopPodSandboxRequest{Pod: pod}))
}

// RemovePodSandbox reports a pod that is gone.
func (h *Host) RemovePodSandbox(ctx context.Context, pod *api.PodSandbox) error {
	return h.named("RemovePodSandbox", h.adaptation.RemovePodSandbox(ctx, &api.RemovePodSandboxRequest{Pod: pod}))
}

// Created is the answer to CreateContainer.
type Created struct {
	// Adjust is what plugins adjust, nil for nothing. It has passed convert.Check.
	Adjust *api.ContainerAdjustment
	// Others has the updates and evictions of other containers.
	Others Others
}

// Others are changes of containers other than that of the event. Do makes them.
type Others struct {
	updates   []*api.ContainerUpdate
	evictions []*api.ContainerEviction
}

// Do makes the changes. The caller does not hold.
func (h *Host) Do(ctx context.Context, others Others) {
	h.evict(ctx, others.evictions)
	h.apply(ctx, others.updates)
}

// CreateContainer reports a container before it is created. An adjustment that has no meaning is
// Invalid, with the plugin's name.
func (h *Host) CreateContainer(ctx context.Context, pod *api.PodSandbox, container *api.Container) (*Created, error) {
	h.creates.Lock()
	defer h.creates.Unlock()
	h.table.resetFault()
	response, err := h.adaptation.CreateContainer(ctx, &api.CreateContainerRequest{Pod: pod, Container: container})
	if fault := h.table.faultOfAdjustment(); fault != nil {
		return nil, fault
	}
	if err != nil {
		return nil, h.named("CreateContainer", err)
	}
	return &Created{Adjust: response.GetAdjust(), Others: Others{response.GetUpdate(), response.GetEvict()}}, nil
}

// PostCreateContainer reports a container that is created.
func (h *Host) PostCreateContainer(ctx context.Context, pod *api.PodSandbox, container *api.Container) error {
	return h.named("PostCreateContainer", h.adaptation.PostCreateContainer(ctx, &api.PostCreateContainerRequest{Pod: pod, Container: container}))
}

// StartContainer reports a container that is about to start.
func (h *Host) StartContainer(ctx context.Context, pod *api.PodSandbox, container *api.Container) error {
	return h.named("StartContainer", h.adaptation.StartContainer(ctx, &api.StartContainerRequest{Pod: pod, Container: container}))
}

// PostStartContainer reports a container that runs, or has run.
func (h *Host) PostStartContainer(ctx context.Context, pod *api.PodSandbox, container *api.Container) error {
	return h.named("PostStartContainer", h.adaptation.PostStartContainer(ctx, &api.PostStartContainerRequest{Pod: pod, Container: container}))
}

// UpdateContainer reports new limits of a container before they hold. It returns the limits that
// are to hold instead.
func (h *Host) UpdateContainer(ctx context.Context, pod *api.PodSandbox, container *api.Container, limits *api.LinuxResources) (*api.LinuxResources, Others, error) {
	response, err := h.adaptation.UpdateContainer(ctx, &api.UpdateContainerRequest{Pod: pod, Container: container, LinuxResources: limits})
	if err != nil {
		return nil, Others{}, h.named("UpdateContainer", err)
	}
	others := Others{evictions: response.GetEvict()}
	for _, update := range response.GetUpdate() {
		if update.GetContainerId() == container.GetId() {
			limits = update.GetLinux().GetResources()
		} else {
			others.updates = append(others.updates, update)
		}
	}
	return limits, others, nil
}

// PostUpdateContainer reports that new limits of a container hold.
func (h *Host) PostUpdateContainer(ctx context.Context, pod *api.PodSandbox, container *api.Container) error {
	return h.named("PostUpdateContainer", h.adaptation.PostUpdateContainer(ctx, &api.PostUpdateContainerRequest{Pod: pod, Container: container}))
}

// StopContainer reports a container that has ended.
func (h *Host) StopContainer(ctx context.Context, pod *api.PodSandbox, container *api.Container) (Others, error) {
	response, err := h.adaptation.StopContainer(ctx, &api.StopContainerRequest{Pod: pod, Container: container})
	updates := slices.DeleteFunc(response.GetUpdate(), func(u *api.ContainerUpdate) bool { return u.GetContainerId() == container.GetId() })
	return Others{updates: updates}, h.named("StopContainer", err)
}

// RemoveContainer reports a container that is gone.
func (h *Host) RemoveContainer(ctx context.Context, pod *api.PodSandbox, container *api.Container) error {
	return h.named("RemoveContainer", h.adaptation.RemoveContainer(ctx, &api.RemoveContainerRequest{Pod: pod, Container: container}))
}

// named adds the plugin and the event to an error of the library.
func (h *Host) named(event string, err error) error {
	if err == nil {
		return nil
	}
	by := "NRI plugins"
	if plugin := h.table.pluginOf(err); plugin != "" {
		by = fmt.Sprintf("NRI plugin %q", plugin)
	}
	// The text alone: the error of a plugin has a code of its own, which is not berth's.
	return fmt.Errorf("%s refused %s: %s: %w", by, event, err.Error(), errs.State)
}
