// Package containerdapi answers the few calls that a kubelet's cAdvisor makes to
// containerd, so that it labels berth's containers with pod, namespace, name and image and finds
// the network of a pod.
//
// cAdvisor finds cgroups whose names end in an id. It asks containerd for the container of the id
// and for a process in it, and reads everything else itself. The server changes nothing but the
// placeholder cgroups of sandboxes.
package containerdapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"

	containersapi "github.com/containerd/containerd/api/services/containers/v1"
	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	versionapi "github.com/containerd/containerd/api/services/version/v1"
	"github.com/containerd/containerd/api/types/task"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/pod/events"
	"github.com/berthrun/berth/internal/pod/view"
)

// namespace is where Kubernetes' containers are in containerd.
const namespace = "k8s.io"

// The label by which cAdvisor tells sandboxes, whose network it reads, from
// containers.
const (
	kindLabel     = "io.cri-containerd.kind"
	kindSandbox   = "sandbox"
	kindContainer = "container"
)

// sandboxImage takes the place of the image of a pause container: dashboards leave out
// sandboxes without an image.
const sandboxImage = "berth/sandbox"

// emptySpec is the OCI spec that cAdvisor gets. It must parse. cAdvisor would read environments
// from it, which may hold secrets.
const emptySpec = `{"ociVersion":"1.2.0","process":{"cwd":"/","user":{"uid":0,"gid":0}}}`

// Pods finds sandboxes and containers. view.CAdvisor and view.EventSource implement it.
type Pods interface {
	// Task finds a sandbox or a container by its full id.
	Task(id string) (*view.Task, error)
	// MakePlaceholder updates the placeholder cgroup of a sandbox to its processes.
	MakePlaceholder(ctx context.Context, id string) error
	Events() (*events.Subscription, error)
}

// Server answers the calls.
type Server struct {
	containersapi.UnimplementedContainersServer
	pods    Pods
	version string
	log     *slog.Logger
}

// New makes a Server that reports version as containerd's.
func New(pods Pods, version string, log *slog.Logger) *Server {
	return &Server{pods: pods, version: version, log: log}
}

// Register adds the services to a gRPC server.
func (s *Server) Register(to grpc.ServiceRegistrar) {
	containersapi.RegisterContainersServer(to, s)
	tasksapi.RegisterTasksServer(to, &tasks{pods: s.pods})
	versionapi.RegisterVersionServer(to, &versions{version: s.version})
}

// find finds the sandbox or container of a request.
func find(ctx context.Context, pods Pods, id string) (*view.Task, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	if requested := md.Get("containerd-namespace"); len(requested) != 1 || requested[0] != namespace {
		return nil, fmt.Errorf("container %q in namespace %q: %w", id, requested, errs.NotFound)
	}
	return pods.Task(id)
}

// Get implements containersapi.ContainersServer.
func (s *Server) Get(ctx context.Context, req *containersapi.GetContainerRequest) (*containersapi.GetContainerResponse, error) {
	found, err := find(ctx, s.pods, req.GetID())
	if err != nil {
		return nil, err
	}
	labels, image, kind := maps.Clone(found.Labels), found.Image, kindContainer
	if found.IsSandbox() {
		image, kind = sandboxImage, kindSandbox
	}
	if labels == nil {
		labels = make(map[string]string)
	}
	labels[kindLabel] = kind // in place of a label of the pod with this key
	return &containersapi.GetContainerResponse{Container: &containersapi.Container{
		ID: found.ID, Labels: labels, Image: image, CreatedAt: timestamppb.New(found.CreatedAt), Sandbox: found.SandboxID,
		Spec: &anypb.Any{TypeUrl: "types.containerd.io/opencontainers/runtime-spec/1/Spec", Value: []byte(emptySpec)},
	}}, nil
}

type tasks struct {
	tasksapi.UnimplementedTasksServer
	pods Pods
}

// Get implements tasksapi.TasksServer. NotFound while nothing of it runs or has run.
func (t *tasks) Get(ctx context.Context, req *tasksapi.GetRequest) (*tasksapi.GetResponse, error) {
	found, err := find(ctx, t.pods, req.GetContainerID())
	if err != nil {
		return nil, err
	}
	process := &task.Process{ID: found.ID, ContainerID: found.ID, Pid: uint32(found.Pid), Status: task.Status_RUNNING}
	switch {
	case found.Exited:
		process.Status, process.ExitStatus = task.Status_STOPPED, uint32(found.ExitCode)
	case found.Pid == 0:
		return nil, fmt.Errorf("no process of %q runs: %w", found.ID, errs.NotFound)
	}
	return &tasksapi.GetResponse{Process: process}, nil
}

type versions struct {
	versionapi.UnimplementedVersionServer
	version string
}

// Version implements versionapi.VersionServer.
func (v *versions) Version(context.Context, *emptypb.Empty) (*versionapi.VersionResponse, error) {
	return &versionapi.VersionResponse{Version: v.version, Revision: "berth"}, nil
}

// UpdatePlaceholders updates the placeholder cgroups of sandboxes to their processes until
// ctx ends or there are no more events. cAdvisor finds a pod's network by a cgroup with the
// sandbox's id. Other runtimes have the cgroup of a pause container there. Berth has an
// empty one, which it makes again when the process that represents the pod changes.
func (s *Server) UpdatePlaceholders(ctx context.Context) {
	for ctx.Err() == nil {
		err := s.follow(ctx)
		if err != nil && !errors.Is(err, errs.Exhausted) {
			return
		}
	}
}

func (s *Server) follow(ctx context.Context) error {
	subscription, err := s.pods.Events()
	if err != nil {
		return err
	}
	defer subscription.Cancel()
	for {
		happened, err := subscription.Next(ctx)
		if err != nil {
			return err
		}
		touched := map[string]bool{}
		for _, event := range happened {
			touched[event.GetPodSandboxStatus().GetId()] = true
		}
		for id := range touched {
			if err := s.pods.MakePlaceholder(ctx, id); err != nil {
				s.log.Warn("cannot update the placeholder cgroup of a sandbox; cAdvisor will not find its network",
					"sandbox", id, "error", err)
			}
		}
	}
}
