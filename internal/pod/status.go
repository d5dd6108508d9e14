package pod

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/pod/events"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// SandboxStatus returns the sandbox's status with those of its containers and,
// when verbose, what berth knows beyond them, as JSON values by name. Its stamp
// compares with those of events: what was told by then is in it.
func (s *Service) SandboxStatus(_ context.Context, id string, verbose bool) (*runtimeapi.PodSandboxStatusResponse, error) {
	stamp := s.events.Stamp()
	rec, err := s.sandbox(id)
	if err != nil {
		return nil, err
	}
	resp := &runtimeapi.PodSandboxStatusResponse{
		Status: rec.status(), ContainersStatuses: s.containerStatuses(rec.ID), Timestamp: stamp,
	}
	if verbose {
		resp.Info, err = s.sandboxInfo(rec)
	}
	return resp, err
}

// ListSandboxes returns the sandboxes that filter (may be nil) selects, the
// newest first.
func (s *Service) ListSandboxes(_ context.Context, filter *runtimeapi.PodSandboxFilter) ([]*runtimeapi.PodSandbox, error) {
	var list []*runtimeapi.PodSandbox
	for _, rec := range s.selectSandboxes(filter) {
		config := rec.Config.Get()
		list = append(list, &runtimeapi.PodSandbox{
			Id: rec.ID, Metadata: config.GetMetadata(), State: rec.criState(), CreatedAt: rec.CreatedAt,
			Labels: config.GetLabels(), Annotations: config.GetAnnotations(), RuntimeHandler: rec.Handler,
		})
	}
	slices.SortFunc(list, func(a, b *runtimeapi.PodSandbox) int {
		return cmp.Or(cmp.Compare(b.CreatedAt, a.CreatedAt), cmp.Compare(a.Id, b.Id))
	})
	return list, nil
}

// ContainerStatus is as SandboxStatus, of a container.
func (s *Service) ContainerStatus(ctx context.Context, id string, verbose bool) (*runtimeapi.ContainerStatus, map[string]string, error) {
	rec, err := s.container(id)
	if err != nil {
		return nil, nil, err
	}
	if !verbose {
		return rec.status(), nil, nil
	}
	info, err := s.containerInfo(ctx, rec)
	return rec.status(), info, err
}

// ListContainers returns the containers that filter (may be nil) selects, the
// newest first.
func (s *Service) ListContainers(_ context.Context, filter *runtimeapi.ContainerFilter) ([]*runtimeapi.Container, error) {
	var list []*runtimeapi.Container
	for _, rec := range s.selectContainers(filter) {
		config := rec.Config.Get()
		list = append(list, &runtimeapi.Container{
			Id: rec.ID, PodSandboxId: rec.SandboxID, Metadata: config.GetMetadata(), Image: config.GetImage(),
			ImageRef: rec.Image.Ref, ImageId: rec.Image.ID, State: rec.criState(), CreatedAt: rec.CreatedAt,
			Labels: config.GetLabels(), Annotations: config.GetAnnotations(),
		})
	}
	slices.SortFunc(list, func(a, b *runtimeapi.Container) int {
		return cmp.Or(cmp.Compare(b.CreatedAt, a.CreatedAt), cmp.Compare(a.Id, b.Id))
	})
	return list, nil
}

func (r *SandboxRecord) criState() runtimeapi.PodSandboxState {
	if r.State == SandboxReady {
		return runtimeapi.PodSandboxState_SANDBOX_READY
	}
	return runtimeapi.PodSandboxState_SANDBOX_NOTREADY
}

func (r *SandboxRecord) status() *runtimeapi.PodSandboxStatus {
	config := r.Config.Get()
	status := &runtimeapi.PodSandboxStatus{
		Id: r.ID, Metadata: config.GetMetadata(), State: r.criState(), CreatedAt: r.CreatedAt,
		Network: &runtimeapi.PodSandboxNetworkStatus{}, Labels: config.GetLabels(), Annotations: config.GetAnnotations(),
		RuntimeHandler: r.Handler,
		Linux: &runtimeapi.LinuxPodSandboxStatus{
			Namespaces: &runtimeapi.Namespace{Options: config.GetLinux().GetSecurityContext().GetNamespaceOptions()},
		},
	}
	if r.Network != nil {
		for i, ip := range r.Network.IPs {
			if i == 0 {
				status.Network.Ip = ip.String()
				continue
			}
			status.Network.AdditionalIps = append(status.Network.AdditionalIps, &runtimeapi.PodIP{Ip: ip.String()})
		}
	}
	return status
}

func (r *ContainerRecord) criState() runtimeapi.ContainerState {
	switch r.State {
	case ContainerCreated, ContainerStarting:
		return runtimeapi.ContainerState_CONTAINER_CREATED
	case ContainerRunning:
		return runtimeapi.ContainerState_CONTAINER_RUNNING
	case ContainerExited:
		return runtimeapi.ContainerState_CONTAINER_EXITED
	default:
		return runtimeapi.ContainerState_CONTAINER_UNKNOWN
	}
}

func (r *ContainerRecord) status() *runtimeapi.ContainerStatus {
	config := r.Config.Get()
	status := &runtimeapi.ContainerStatus{
		Id: r.ID, Metadata: config.GetMetadata(), State: r.criState(),
		CreatedAt: r.CreatedAt, StartedAt: r.StartedAt, FinishedAt: r.FinishedAt, ExitCode: r.ExitCode,
		Image: r.imageSpec(), ImageRef: r.Image.Ref, ImageId: r.Image.ID, Reason: r.Reason, Message: r.Message,
		Labels: config.GetLabels(), Annotations: config.GetAnnotations(), Mounts: r.mounts(),
		LogPath: r.LogPath, User: r.user(), StopSignal: r.criStopSignal(),
	}
	if r.State == ContainerStarting {
		status.StartedAt = 0 // it is an intent until the program runs
	}
	if res := r.resources(); res != nil {
		status.Resources = &runtimeapi.ContainerResources{Linux: res}
	}
	return status
}

// imageSpec is what was asked for, under the image's own name where it has one:
// a kubelet asks by id, and people want to read a name.
func (r *ContainerRecord) imageSpec() *runtimeapi.ImageSpec {
	asked := r.Config.Get().GetImage()
	return &runtimeapi.ImageSpec{
		Image: cmp.Or(r.Image.Name, asked.GetImage()), Annotations: asked.GetAnnotations(),
		UserSpecifiedImage: asked.GetUserSpecifiedImage(), RuntimeHandler: asked.GetRuntimeHandler(),
	}
}

// mounts are those asked for; of an image it is told which one was found.
func (r *ContainerRecord) mounts() []*runtimeapi.Mount {
	asked := r.Config.Get().GetMounts()
	if len(r.VolumeImages) == 0 {
		return asked
	}
	mounts := slices.Clone(asked)
	for i, m := range mounts {
		// A damaged record may have an id for what is no image.
		if id := r.VolumeImages[i]; id != "" && m.GetImage() != nil {
			mounts[i] = proto.CloneOf(m)
			mounts[i].Image.ImageRef = cmp.Or(r.VolumeRefs[i], id)
		}
	}
	return mounts
}

// user is who the container runs as: what the engine found in the image or, in a
// record of an older berth, what the request alone says.
func (r *ContainerRecord) user() *runtimeapi.ContainerUser {
	if r.Engine != nil && r.Engine.User != nil {
		user := r.Engine.User
		return &runtimeapi.ContainerUser{Linux: &runtimeapi.LinuxContainerUser{
			Uid: user.UID, Gid: user.GID, SupplementalGroups: user.Groups,
		}}
	}
	sc := r.Config.Get().GetLinux().GetSecurityContext()
	if sc.GetRunAsUser() == nil || sc.GetRunAsGroup() == nil {
		return nil
	}
	return &runtimeapi.ContainerUser{Linux: &runtimeapi.LinuxContainerUser{
		Uid: sc.GetRunAsUser().GetValue(), Gid: sc.GetRunAsGroup().GetValue(), SupplementalGroups: sc.GetSupplementalGroups(),
	}}
}

func (s *Service) containersOf(sandboxID string) []string {
	var ids []string
	for _, rec := range s.containers.All() {
		if rec.SandboxID == sandboxID && rec.visible() {
			ids = append(ids, rec.ID)
		}
	}
	slices.Sort(ids)
	return ids
}

// selectSandboxes returns the visible sandboxes that a filter selects; a nil
// filter and an empty field select all, ids may be prefixes.
func (s *Service) selectSandboxes(filter *runtimeapi.PodSandboxFilter) []*SandboxRecord {
	var selected []*SandboxRecord
	for _, rec := range s.sandboxes.All() {
		if rec.visible() && strings.HasPrefix(rec.ID, filter.GetId()) &&
			(filter.GetState() == nil || filter.GetState().GetState() == rec.criState()) &&
			matches(filter.GetLabelSelector(), rec.Config.Get().GetLabels()) {
			selected = append(selected, rec)
		}
	}
	return selected
}

// selectContainers is the same for containers.
func (s *Service) selectContainers(filter *runtimeapi.ContainerFilter) []*ContainerRecord {
	var selected []*ContainerRecord
	for _, rec := range s.containers.All() {
		if rec.visible() && strings.HasPrefix(rec.ID, filter.GetId()) && strings.HasPrefix(rec.SandboxID, filter.GetPodSandboxId()) &&
			(filter.GetState() == nil || filter.GetState().GetState() == rec.criState()) &&
			matches(filter.GetLabelSelector(), rec.Config.Get().GetLabels()) {
			selected = append(selected, rec)
		}
	}
	return selected
}

func matches(selector, labels map[string]string) bool {
	for key, value := range selector {
		if got, ok := labels[key]; !ok || got != value {
			return false
		}
	}
	return true
}

// Events subscribes to what happens to sandboxes and containers. The subscription
// begins with the events that lead to what each of them is now, the older pods
// first, and goes on with every change: whoever was cut off, or lost the daemon,
// misses nothing by subscribing again, and what it is not told of is gone.
// The caller cancels it.
func (s *Service) Events() (*events.Subscription, error) { return s.events.Subscribe(s.present) }

// CloseEvents ends all subscriptions and refuses new ones.
func (s *Service) CloseEvents() { s.events.Close() }

// EventCounters tell how many events there were.
func (s *Service) EventCounters() events.Counters { return s.events.Counters() }

func (s *Service) sandboxChanged(old, new *SandboxRecord) {
	rec := cmp.Or(new, old)
	for _, kind := range sandboxEvents(old, new) {
		s.events.Publish(&events.Event{ContainerId: rec.ID, ContainerEventType: kind}, func(e *events.Event) {
			e.PodSandboxStatus = rec.status()
			e.ContainersStatuses = s.containerStatuses(rec.ID)
		})
	}
}

// containerChanged tells nothing of a container whose sandbox has gone: an event is
// about a pod, and clients refuse one without.
func (s *Service) containerChanged(old, new *ContainerRecord) {
	rec := cmp.Or(new, old)
	sb, err := s.sandboxes.Get(rec.SandboxID)
	if err != nil {
		return
	}
	for _, kind := range containerEvents(old, new) {
		s.events.Publish(&events.Event{ContainerId: rec.ID, ContainerEventType: kind}, func(e *events.Event) {
			if now, err := s.sandboxes.Get(sb.ID); err == nil {
				sb = now
			}
			e.PodSandboxStatus, e.ContainersStatuses = sb.status(), s.containerStatuses(sb.ID)
		})
	}
}

// present are the events that would have led to what is now.
func (s *Service) present() []*events.Event {
	containers := map[string][]*ContainerRecord{}
	for _, rec := range s.containers.All() {
		containers[rec.SandboxID] = append(containers[rec.SandboxID], rec)
	}
	sandboxes := s.sandboxes.All()
	slices.SortFunc(sandboxes, func(a, b *SandboxRecord) int {
		return cmp.Or(cmp.Compare(a.CreatedAt, b.CreatedAt), cmp.Compare(a.ID, b.ID))
	})
	var all []*events.Event
	for _, sb := range sandboxes {
		status, statuses := sb.status(), statusesOf(containers[sb.ID])
		add := func(id string, kinds []runtimeapi.ContainerEventType) {
			for _, kind := range kinds {
				all = append(all, &events.Event{
					ContainerId: id, ContainerEventType: kind, PodSandboxStatus: status, ContainersStatuses: statuses,
				})
			}
		}
		add(sb.ID, sandboxEvents(nil, sb))
		for _, rec := range slices.Backward(containers[sb.ID]) {
			add(rec.ID, containerEvents(nil, rec))
		}
	}
	return all
}

// newestTime is the newest time of any record: stamps go on after it, even if the
// clock was set back since.
func (s *Service) newestTime() int64 {
	var newest int64
	for _, rec := range s.sandboxes.All() {
		newest = max(newest, rec.CreatedAt)
	}
	for _, rec := range s.containers.All() {
		newest = max(newest, rec.CreatedAt, rec.StartedAt, rec.FinishedAt)
	}
	return newest
}

// containerStatuses are the statuses of a sandbox's containers, the newest first: of
// those of one name a kubelet takes the first for the present one.
func (s *Service) containerStatuses(sandboxID string) []*runtimeapi.ContainerStatus {
	var recs []*ContainerRecord
	for _, rec := range s.containers.All() {
		if rec.SandboxID == sandboxID {
			recs = append(recs, rec)
		}
	}
	return statusesOf(recs)
}

// statusesOf sorts recs, the newest first, and returns the statuses of those that
// clients may see.
func statusesOf(recs []*ContainerRecord) []*runtimeapi.ContainerStatus {
	slices.SortFunc(recs, func(a, b *ContainerRecord) int {
		return cmp.Or(cmp.Compare(b.CreatedAt, a.CreatedAt), cmp.Compare(b.ID, a.ID))
	})
	var all []*runtimeapi.ContainerStatus
	for _, rec := range recs {
		if rec.visible() {
			all = append(all, rec.status())
		}
	}
	return all
}
