// Package selection has the flags that select containers, pods and images, and lists the selected
// ones.
package selection

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cli/crictl/connection"
	"github.com/berthrun/berth/internal/errs"
)

// Labels that a kubelet gives to containers.
const (
	LabelPodName      = "io.kubernetes.pod.name"
	LabelPodNamespace = "io.kubernetes.pod.namespace"
)

// common are the filters that containers and pods share.
type common struct {
	ID, Name, Namespace, State string
	Labels                     []string
	Latest                     bool
	Last                       int
}

// Register adds the flags.
func (f *common) Register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.Name, "name", "", "only names that match this regular expression")
	flags.StringVar(&f.Namespace, "namespace", "", "only pod namespaces that match this regular expression")
	flags.StringVarP(&f.State, "state", "s", "", "only those in this state")
	flags.StringArrayVar(&f.Labels, "label", nil, "only those with the label KEY=VALUE")
	flags.BoolVarP(&f.Latest, "latest", "l", false, "the newest only, in any state")
	flags.IntVarP(&f.Last, "last", "n", 0, "the newest N only, in any state; 0: all")
}

// ParseLabels reads KEY=VALUE.
func ParseLabels(all []string) (map[string]string, error) {
	labels := map[string]string{}
	for _, text := range all {
		key, value, found := strings.Cut(text, "=")
		if !found || strings.Contains(value, "=") {
			return nil, fmt.Errorf("label %q: want KEY=VALUE: %w", text, errs.Invalid)
		}
		labels[key] = value
	}
	return labels, nil
}

// matcher reports whether names fit the regular expressions.
func (f *common) matcher() (func(name, namespace string) bool, error) {
	var patterns [2]*regexp.Regexp
	for i, text := range []string{f.Name, f.Namespace} {
		var err error
		if patterns[i], err = regexp.Compile(text); err != nil {
			return nil, fmt.Errorf("regular expression %q: %w: %w", text, errs.Invalid, err)
		}
	}
	return func(name, namespace string) bool {
		return patterns[0].MatchString(name) && patterns[1].MatchString(namespace)
	}, nil
}

// created has a creation time.
type created interface{ GetCreatedAt() int64 }

// newest sorts, the newest first, and keeps as many as the flags ask for.
func newest[T created](f *common, all []T) []T {
	slices.SortStableFunc(all, func(a, b T) int {
		switch {
		case a.GetCreatedAt() > b.GetCreatedAt():
			return -1
		case a.GetCreatedAt() < b.GetCreatedAt():
			return 1
		}
		return 0
	})
	switch {
	case f.Last > 0:
		return all[:min(len(all), f.Last)]
	case f.Latest:
		return all[:min(len(all), 1)]
	}
	return all
}

// Containers are the flags that choose containers.
type Containers struct {
	common
	Pod, Image string
	All        bool
}

// Register adds the flags.
func (f *Containers) Register(cmd *cobra.Command) {
	flags := cmd.Flags()
	f.common.Register(cmd)
	flags.StringVarP(&f.Pod, "pod", "p", "", "only those of the pod of this id")
	flags.StringVar(&f.Image, "image", "", "only those of this image")
}

// List lists the selected containers.
func (f *Containers) List(ctx context.Context, c *connection.Clients) ([]*runtimeapi.Container, error) {
	filter := &runtimeapi.ContainerFilter{Id: f.ID, PodSandboxId: f.Pod}
	var err error
	if filter.LabelSelector, err = ParseLabels(f.Labels); err != nil {
		return nil, err
	}
	if filter.State, err = f.containerState(); err != nil {
		return nil, err
	}
	matches, err := f.matcher()
	if err != nil {
		return nil, err
	}
	resp, err := c.Runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: filter})
	if err != nil {
		return nil, fmt.Errorf("cannot list containers: %w", err)
	}
	ofImage, err := f.ofImage(ctx, c)
	if err != nil {
		return nil, err
	}
	found := slices.DeleteFunc(resp.Containers, func(c *runtimeapi.Container) bool {
		return !matches(c.GetMetadata().GetName(), PodLabel(c, LabelPodNamespace)) || !ofImage(c.GetImage().GetImage())
	})
	return newest(&f.common, found), nil
}

// containerState is the selected state: running, unless a flag says otherwise.
func (f *Containers) containerState() (*runtimeapi.ContainerStateValue, error) {
	state, known := runtimeapi.ContainerState_value["CONTAINER_"+strings.ToUpper(cmp.Or(f.State, "running"))]
	switch {
	case !known:
		return nil, fmt.Errorf("--state %q: want created, running, exited or unknown: %w", f.State, errs.Invalid)
	case f.Latest || f.Last > 0 || f.All && f.State == "":
		return nil, nil //nolint:nilnil // any state
	}
	return &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState(state)}, nil
}

// ofImage reports whether an image is the selected one, under any of its names.
func (f *Containers) ofImage(ctx context.Context, c *connection.Clients) (func(image string) bool, error) {
	if f.Image == "" {
		return func(string) bool { return true }, nil
	}
	ids := map[string]string{}
	id := func(image string) (string, error) {
		resp, err := c.Images.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: image}})
		return resp.GetImage().GetId(), err
	}
	want, err := id(f.Image)
	if err != nil {
		return nil, fmt.Errorf("cannot find the image %s: %w", f.Image, err)
	}
	return func(image string) bool {
		if _, asked := ids[image]; !asked {
			// An image without a status is not the selected one.
			ids[image], _ = id(image)
		}
		return want != "" && ids[image] == want
	}, nil
}

// Pods are the flags that choose pods.
type Pods struct{ common }

// List lists the selected pods.
func (f *Pods) List(ctx context.Context, c *connection.Clients) ([]*runtimeapi.PodSandbox, error) {
	filter := &runtimeapi.PodSandboxFilter{Id: f.ID}
	var err error
	if filter.LabelSelector, err = ParseLabels(f.Labels); err != nil {
		return nil, err
	}
	if f.State != "" {
		state, known := runtimeapi.PodSandboxState_value["SANDBOX_"+strings.ToUpper(f.State)]
		if !known {
			return nil, fmt.Errorf("--state %q: want ready or notready: %w", f.State, errs.Invalid)
		}
		filter.State = &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState(state)}
	}
	matches, err := f.matcher()
	if err != nil {
		return nil, err
	}
	resp, err := c.Runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{Filter: filter})
	if err != nil {
		return nil, fmt.Errorf("cannot list pods: %w", err)
	}
	found := slices.DeleteFunc(resp.Items, func(p *runtimeapi.PodSandbox) bool {
		return !matches(p.GetMetadata().GetName(), p.GetMetadata().GetNamespace())
	})
	return newest(&f.common, found), nil
}

// PodLabel is a label of a container about its pod.
func PodLabel(c *runtimeapi.Container, label string) string {
	return cmp.Or(c.GetLabels()[label], "unknown")
}

// identified has an ID.
type identified interface{ GetId() string }

// IDs are those of a list.
func IDs[T identified](all []T) []string {
	var found []string
	for _, one := range all {
		found = append(found, one.GetId())
	}
	return found
}
