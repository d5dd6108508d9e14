package view

import (
	"cmp"
	"slices"

	"github.com/berthrun/berth/internal/pod/record"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func sandboxState(r *record.Sandbox) runtimeapi.PodSandboxState {
	if r.State == record.SandboxReady {
		return runtimeapi.PodSandboxState_SANDBOX_READY
	}
	return runtimeapi.PodSandboxState_SANDBOX_NOTREADY
}

func sandboxStatus(r *record.Sandbox) *runtimeapi.PodSandboxStatus {
	config := r.Config.Get()
	status := &runtimeapi.PodSandboxStatus{
		Id: r.ID, Metadata: config.GetMetadata(), State: sandboxState(r), CreatedAt: r.CreatedAt,
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

// containerState is the state that clients see. A kubelet runs another container in the place of one that is CREATED,
// and ends one that is UNKNOWN first.
func containerState(r *record.Container) runtimeapi.ContainerState {
	if r.Undecided {
		return runtimeapi.ContainerState_CONTAINER_UNKNOWN
	}
	switch r.State {
	case record.ContainerCreated, record.ContainerStarting:
		return runtimeapi.ContainerState_CONTAINER_CREATED
	case record.ContainerRunning:
		return runtimeapi.ContainerState_CONTAINER_RUNNING
	case record.ContainerExited:
		return runtimeapi.ContainerState_CONTAINER_EXITED
	default:
		return runtimeapi.ContainerState_CONTAINER_UNKNOWN
	}
}

func containerStatus(r *record.Container) *runtimeapi.ContainerStatus {
	config := r.Config.Get()
	status := &runtimeapi.ContainerStatus{
		Id: r.ID, Metadata: config.GetMetadata(), State: containerState(r),
		CreatedAt: r.CreatedAt, StartedAt: r.StartedAt, FinishedAt: r.FinishedAt, ExitCode: r.ExitCode,
		Image: imageSpec(r), ImageRef: r.Image.Ref, ImageId: r.Image.ID, Reason: r.Reason, Message: r.Message,
		Labels: config.GetLabels(), Annotations: config.GetAnnotations(), Mounts: mountsOf(r),
		LogPath: r.LogPath, User: userOf(r), StopSignal: r.CRIStopSignal(),
	}
	if r.State == record.ContainerStarting {
		status.StartedAt = 0 // it is an intent until the program runs
	}
	if res := r.CurrentResources(); res != nil {
		status.Resources = &runtimeapi.ContainerResources{Linux: res}
	}
	return status
}

// imageSpec is the requested image, under the image's own name where it has one:
// a kubelet requests an id, and people want to read a name.
func imageSpec(r *record.Container) *runtimeapi.ImageSpec {
	asked := r.Config.Get().GetImage()
	return &runtimeapi.ImageSpec{
		Image: cmp.Or(r.Image.Name, asked.GetImage()), Annotations: asked.GetAnnotations(),
		UserSpecifiedImage: asked.GetUserSpecifiedImage(), RuntimeHandler: asked.GetRuntimeHandler(),
	}
}

// mountsOf are those asked for; an image mount names the image that was found.
func mountsOf(r *record.Container) []*runtimeapi.Mount {
	asked := r.Config.Get().GetMounts()
	if len(r.VolumeImages) == 0 {
		return asked
	}
	mounts := slices.Clone(asked)
	for i, m := range mounts {
		// A damaged record may have an image id for another mount.
		if id := r.VolumeImages[i]; id != "" && m.GetImage() != nil {
			mounts[i] = proto.CloneOf(m)
			mounts[i].Image.ImageRef = cmp.Or(r.VolumeRefs[i], id)
		}
	}
	return mounts
}

// userOf is the user of the container: from the image, as the engine found it, or, in a
// record of an older berth, from the request alone.
func userOf(r *record.Container) *runtimeapi.ContainerUser {
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

// containerStatuses are the statuses of a sandbox's containers, the newest first: of
// those of one name a kubelet takes the first for the present one.
func containerStatuses(records *record.Store, sandboxID string) []*runtimeapi.ContainerStatus {
	return statusesOf(records.Containers.InGroup(sandboxID))
}

// statusesOf sorts recs, the newest first, and returns the statuses of those that
// clients may see.
func statusesOf(recs []*record.Container) []*runtimeapi.ContainerStatus {
	slices.SortFunc(recs, func(a, b *record.Container) int {
		return cmp.Or(cmp.Compare(b.CreatedAt, a.CreatedAt), cmp.Compare(b.ID, a.ID))
	})
	var all []*runtimeapi.ContainerStatus
	for _, rec := range recs {
		if rec.Visible() {
			all = append(all, containerStatus(rec))
		}
	}
	return all
}
