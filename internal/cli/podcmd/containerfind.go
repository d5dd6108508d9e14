package podcmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cli/show"
	"github.com/berthrun/berth/internal/criclient"
	"github.com/berthrun/berth/internal/errs"
)

// ofPod is a container with its pod, which is nil if the runtime does not list it.
type ofPod struct {
	*runtimeapi.Container
	pod *runtimeapi.PodSandbox
}

func (c ofPod) podName() string {
	if c.pod == nil {
		return show.ID(c.PodSandboxId)
	}
	return podName(c.pod)
}

// names are what a user may call the container, beside its id.
func (c ofPod) names() []string {
	name := c.Metadata.GetName()
	return []string{name, c.pod.GetMetadata().GetName() + "/" + name, c.podName() + "/" + name}
}

// listContainers lists all containers, the newest first.
func listContainers(ctx context.Context, conn *criclient.Conn) ([]ofPod, error) {
	pods, err := conn.Runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return nil, err
	}
	containers, err := conn.Runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return nil, err
	}
	of := map[string]*runtimeapi.PodSandbox{}
	for _, pod := range pods.Items {
		of[pod.Id] = pod
	}
	all := make([]ofPod, 0, len(containers.Containers))
	for _, container := range containers.Containers {
		all = append(all, ofPod{container, of[container.PodSandboxId]})
	}
	slices.SortFunc(all, func(a, b ofPod) int { return cmp.Or(cmp.Compare(b.CreatedAt, a.CreatedAt), cmp.Compare(a.Id, b.Id)) })
	return all, nil
}

func alive(containers []ofPod) []ofPod {
	return slices.DeleteFunc(containers, func(c ofPod) bool { return c.State == runtimeapi.ContainerState_CONTAINER_EXITED })
}

func findByName(ctx context.Context, conn *criclient.Conn, name string) (ofPod, error) {
	all, err := listContainers(ctx, conn)
	if err != nil {
		return ofPod{}, err
	}
	return chooseContainer(all, name)
}

// chooseContainer finds a container by name or ID in a list, the newest first. Of the attempts of one container it
// finds the newest.
func chooseContainer(all []ofPod, name string) (ofPod, error) {
	if name == "" {
		return ofPod{}, fmt.Errorf("a container's name is empty: %w", errs.Invalid)
	}
	var byName, byID []ofPod
	seen := map[string]bool{}
	for _, c := range all {
		if c.Id == name {
			return c, nil
		}
		whole := c.podName() + "/" + c.Metadata.GetName()
		if slices.Contains(c.names(), name) && !seen[whole] {
			seen[whole] = true
			byName = append(byName, c)
		}
		if strings.HasPrefix(c.Id, name) {
			byID = append(byID, c)
		}
	}
	found := byName
	if len(found) == 0 {
		found = byID
	}
	switch len(found) {
	case 0:
		return ofPod{}, fmt.Errorf("there is no container %q; `berth container ls -a` shows all: %w", name, errs.NotFound)
	case 1:
		return found[0], nil
	}
	var which []string
	for _, c := range found {
		which = append(which, c.podName()+"/"+c.Metadata.GetName()+" ("+show.ID(c.Id)+")")
	}
	return ofPod{}, fmt.Errorf("%q could be %s: %w", name, strings.Join(which, " or "), errs.Invalid)
}

// hintPod adds to the error of a container that does not exist that the name is a pod's: then the command of `berth pod` is
// meant, which has the same name.
func hintPod(ctx context.Context, cmd *cobra.Command, conn *criclient.Conn, name string, err error) error {
	if !errors.Is(err, errs.NotFound) {
		return err
	}
	pod, other := findPod(ctx, conn, name)
	if other != nil {
		return err // no pod, either
	}
	return fmt.Errorf("no container has the name or ID %q; it is the pod %s: run `berth pod %s %s`, or `berth container ls -a` to list containers: %w",
		name, podName(pod), cmd.Name(), name, errs.NotFound)
}

// completeContainers offers names of containers for the first argument, or for all.
func (c *commands) completeContainers(all bool) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 && !all {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), completionTime)
		defer cancel()
		conn, err := c.endpoint.Dial(ctx)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		defer conn.Close()
		containers, err := listContainers(ctx, conn)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var names []cobra.Completion
		for _, container := range containers {
			if name := container.podName() + "/" + container.Metadata.GetName(); !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}
