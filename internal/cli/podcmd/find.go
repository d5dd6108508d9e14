package podcmd

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cli/show"
	"github.com/berthrun/berth/internal/criclient"
	"github.com/berthrun/berth/internal/errs"
)

// findPod finds a pod by ID or name. An ID or its unambiguous prefix takes precedence. Of several
// pods of one name it finds the ready one, else the newest of one UID.
func findPod(ctx context.Context, conn *criclient.Conn, name string) (*runtimeapi.PodSandbox, error) {
	resp, err := conn.Runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return nil, err
	}
	return choosePod(resp.Items, name)
}

func choosePod(all []*runtimeapi.PodSandbox, name string) (*runtimeapi.PodSandbox, error) {
	if name == "" {
		return nil, fmt.Errorf("a pod's name is empty: %w", errs.Invalid)
	}
	var byName, byID []*runtimeapi.PodSandbox
	for _, pod := range all {
		switch name {
		case pod.Id:
			return pod, nil
		case pod.Metadata.GetName(), podName(pod):
			byName = append(byName, pod)
		}
		if strings.HasPrefix(pod.Id, name) {
			byID = append(byID, pod)
		}
	}
	if ready := onlyReady(byName); len(ready) > 0 {
		byName = ready
	}
	newestFirst(byName)
	switch {
	case len(byName) > 0 && sameOwner(byName):
		return byName[0], nil
	case len(byName) > 0:
		return nil, ambiguous(name, byName)
	case len(byID) == 1:
		return byID[0], nil
	case len(byID) > 1:
		return nil, ambiguous(name, byID)
	}
	return nil, fmt.Errorf("there is no pod %q; `berth pod ls -a` shows all: %w", name, errs.NotFound)
}

func podName(pod *runtimeapi.PodSandbox) string {
	return pod.Metadata.GetNamespace() + "/" + pod.Metadata.GetName()
}

func onlyReady(pods []*runtimeapi.PodSandbox) []*runtimeapi.PodSandbox {
	var ready []*runtimeapi.PodSandbox
	for _, pod := range pods {
		if pod.State == runtimeapi.PodSandboxState_SANDBOX_READY {
			ready = append(ready, pod)
		}
	}
	return ready
}

func newestFirst(pods []*runtimeapi.PodSandbox) {
	slices.SortFunc(pods, func(a, b *runtimeapi.PodSandbox) int { return cmp.Compare(b.CreatedAt, a.CreatedAt) })
}

// sameOwner reports whether all are of one namespace, and none runs beside another.
func sameOwner(pods []*runtimeapi.PodSandbox) bool {
	for _, pod := range pods {
		if podName(pod) != podName(pods[0]) {
			return false
		}
	}
	return len(pods) == 1 || pods[0].State != runtimeapi.PodSandboxState_SANDBOX_READY
}

func ambiguous(name string, pods []*runtimeapi.PodSandbox) error {
	var which []string
	for _, pod := range pods {
		which = append(which, podName(pod)+" ("+show.ID(pod.Id)+")")
	}
	return fmt.Errorf("%q could be %s: %w", name, strings.Join(which, " or "), errs.Invalid)
}

// containersOf lists a pod's containers by name and attempt, the newest attempt
// first.
func containersOf(ctx context.Context, conn *criclient.Conn, pod *runtimeapi.PodSandbox) ([]*runtimeapi.Container, error) {
	resp, err := conn.Runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{
		Filter: &runtimeapi.ContainerFilter{PodSandboxId: pod.Id},
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(resp.Containers, func(a, b *runtimeapi.Container) int {
		return cmp.Or(
			cmp.Compare(a.Metadata.GetName(), b.Metadata.GetName()),
			cmp.Compare(b.Metadata.GetAttempt(), a.Metadata.GetAttempt()),
		)
	})
	return resp.Containers, nil
}

// latest keeps the newest attempt of each name.
func latest(containers []*runtimeapi.Container) []*runtimeapi.Container {
	var out []*runtimeapi.Container
	for _, c := range containers {
		if len(out) == 0 || out[len(out)-1].Metadata.GetName() != c.Metadata.GetName() {
			out = append(out, c)
		}
	}
	return out
}

// findContainer finds one container of a pod: the one of the name, or the only one
// there is, or the only one that runs.
func findContainer(ctx context.Context, conn *criclient.Conn, pod *runtimeapi.PodSandbox, name string) (*runtimeapi.Container, error) {
	all, err := containersOf(ctx, conn, pod)
	if err != nil {
		return nil, err
	}
	candidates := latest(all)
	var running, names []*runtimeapi.Container
	for _, c := range candidates {
		if c.Metadata.GetName() == name {
			return c, nil
		}
		names = append(names, c)
		if c.State == runtimeapi.ContainerState_CONTAINER_RUNNING {
			running = append(running, c)
		}
	}
	switch {
	case name == "" && len(candidates) == 1:
		return candidates[0], nil
	case name == "" && len(running) == 1:
		return running[0], nil
	case len(candidates) == 0:
		return nil, fmt.Errorf("pod %s has no container: %w", podName(pod), errs.NotFound)
	case name == "":
		return nil, fmt.Errorf("pod %s has several containers, name one with -c: %s: %w", podName(pod), joinNames(names), errs.Invalid)
	}
	return nil, fmt.Errorf("pod %s has no container %q, but %s: %w", podName(pod), name, joinNames(names), errs.NotFound)
}

func joinNames(containers []*runtimeapi.Container) string {
	var names []string
	for _, c := range containers {
		names = append(names, c.Metadata.GetName())
	}
	return strings.Join(names, ", ")
}
