package crictl

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
)

// Labels that a kubelet gives to containers.
const (
	labelPodName      = "io.kubernetes.pod.name"
	labelPodNamespace = "io.kubernetes.pod.namespace"
)

// common are the filters that containers and pods share.
type common struct {
	id, name, namespace, state string
	labels                     []string
	latest                     bool
	last                       int
}

func (f *common) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.name, "name", "", "only names that match this regular expression")
	flags.StringVar(&f.namespace, "namespace", "", "only pod namespaces that match this regular expression")
	flags.StringVarP(&f.state, "state", "s", "", "only those in this state")
	flags.StringArrayVar(&f.labels, "label", nil, "only those with the label KEY=VALUE")
	flags.BoolVarP(&f.latest, "latest", "l", false, "the newest only, in any state")
	flags.IntVarP(&f.last, "last", "n", 0, "the newest N only, in any state; 0: all")
}

// parseLabels reads KEY=VALUE.
func parseLabels(all []string) (map[string]string, error) {
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
	for i, text := range []string{f.name, f.namespace} {
		var err error
		if patterns[i], err = regexp.Compile(text); err != nil {
			return nil, fmt.Errorf("regular expression %q: %w: %w", text, errs.Invalid, err)
		}
	}
	return func(name, namespace string) bool {
		return patterns[0].MatchString(name) && patterns[1].MatchString(namespace)
	}, nil
}

// created is what has a time of its making.
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
	case f.last > 0:
		return all[:min(len(all), f.last)]
	case f.latest:
		return all[:min(len(all), 1)]
	}
	return all
}

// containerFilter are the flags that choose containers.
type containerFilter struct {
	common
	pod, image string
	all        bool
}

func (f *containerFilter) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	f.common.register(cmd)
	flags.StringVarP(&f.pod, "pod", "p", "", "only those of the pod of this id")
	flags.StringVar(&f.image, "image", "", "only those of this image")
}

// list asks for the containers that are meant.
func (f *containerFilter) list(ctx context.Context, c *clients) ([]*runtimeapi.Container, error) {
	filter := &runtimeapi.ContainerFilter{Id: f.id, PodSandboxId: f.pod}
	var err error
	if filter.LabelSelector, err = parseLabels(f.labels); err != nil {
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
		return !matches(c.GetMetadata().GetName(), podLabel(c, labelPodNamespace)) || !ofImage(c.GetImage().GetImage())
	})
	return newest(&f.common, found), nil
}

// containerState is the state that is asked for: running, unless a flag says otherwise.
func (f *containerFilter) containerState() (*runtimeapi.ContainerStateValue, error) {
	state, known := runtimeapi.ContainerState_value["CONTAINER_"+strings.ToUpper(or(f.state, "running"))]
	switch {
	case !known:
		return nil, fmt.Errorf("--state %q: want created, running, exited or unknown: %w", f.state, errs.Invalid)
	case f.latest || f.last > 0 || f.all && f.state == "":
		return nil, nil //nolint:nilnil // any state
	}
	return &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState(state)}, nil
}

// ofImage reports whether an image is the one that is asked for, whichever of its names either has.
func (f *containerFilter) ofImage(ctx context.Context, c *clients) (func(image string) bool, error) {
	if f.image == "" {
		return func(string) bool { return true }, nil
	}
	ids := map[string]string{}
	id := func(image string) (string, error) {
		resp, err := c.Images.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: image}})
		return resp.GetImage().GetId(), err
	}
	want, err := id(f.image)
	if err != nil {
		return nil, fmt.Errorf("cannot find the image %s: %w", f.image, err)
	}
	return func(image string) bool {
		if _, asked := ids[image]; !asked {
			// One that cannot be asked for is none that is meant.
			ids[image], _ = id(image)
		}
		return want != "" && ids[image] == want
	}, nil
}

// podFilter are the flags that choose pods.
type podFilter struct{ common }

func (f *podFilter) list(ctx context.Context, c *clients) ([]*runtimeapi.PodSandbox, error) {
	filter := &runtimeapi.PodSandboxFilter{Id: f.id}
	var err error
	if filter.LabelSelector, err = parseLabels(f.labels); err != nil {
		return nil, err
	}
	if f.state != "" {
		state, known := runtimeapi.PodSandboxState_value["SANDBOX_"+strings.ToUpper(f.state)]
		if !known {
			return nil, fmt.Errorf("--state %q: want ready or notready: %w", f.state, errs.Invalid)
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

// podLabel is what a container's labels say of its pod.
func podLabel(c *runtimeapi.Container, label string) string {
	return or(c.GetLabels()[label], "unknown")
}
