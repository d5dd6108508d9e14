// Package legacy reads the sandboxes and containers that dockershim and cri-dockerd made in a
// Docker Engine: from what the engine reports of a container to what a record of berth has.
//
// It is pure, except for the claim: the file by which one berth adopts the pods of an engine.
package legacy

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/moby/moby/api/types/container"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/engine/docker/labels"
	"github.com/berthrun/berth/internal/errs"
)

// The labels that a kubelet sets on all its sandboxes and containers.
const (
	podName      = labels.PodName
	podNamespace = labels.PodNamespace
	podUID       = "io.kubernetes.pod.uid"
	restartCount = "io.kubernetes.container.restartCount" // an annotation
)

// Origin is who made a container of a Docker Engine.
type Origin int

// The origins.
const (
	// Other is a container of no pod, or one of a berth.
	Other Origin = iota
	// Adoptable was made by dockershim or cri-dockerd.
	Adoptable
	// TooOld has the name of a pod's container, and no labels: a kubelet before 1.6 made it, or
	// a program that is not known.
	TooOld
)

// OriginOf reads who made a container from its labels and its names.
func OriginOf(dockerLabels map[string]string, names []string) Origin {
	if dockerLabels[labels.Instance] != "" || dockerLabels[labels.ID] != "" {
		return Other
	}
	switch dockerLabels[labels.Type] {
	case labels.TypeSandbox, labels.TypeContainer:
		return Adoptable
	}
	for _, name := range names {
		if strings.HasPrefix(strings.TrimPrefix(name, "/"), "k8s_") {
			return TooOld
		}
	}
	return Other
}

// ForeignError is the error of a container that has the labels of a pod and is not part of it: an
// image has all labels of the container that somebody made it of, and gives them to its containers.
// Its kind is Invalid.
type ForeignError struct {
	ID, Why string
}

func (e *ForeignError) Error() string {
	return fmt.Sprintf("container %s has labels of a pod, which an image may have given it, and is not part of the pod: %s", e.ID, e.Why)
}

func (e *ForeignError) Unwrap() error { return errs.Invalid }

// pod reads the pod of a container: from its labels, or else from its name, which a person may
// have changed.
func pod(c *container.InspectResponse) (labels.Parsed, error) {
	parsed, err := labels.Parse(c.Name)
	l := c.Config.Labels
	parsed.Pod = cmp.Or(l[podName], parsed.Pod)
	parsed.Namespace = cmp.Or(l[podNamespace], parsed.Namespace)
	parsed.UID = cmp.Or(l[podUID], parsed.UID)
	if parsed.Pod == "" || parsed.Namespace == "" {
		return parsed, fmt.Errorf("cannot adopt container %s: neither its labels nor its name say which pod it belongs to: %w (%w)", c.ID, err, errs.Invalid)
	}
	return parsed, nil
}

// check refuses an answer of the engine that cannot be adopted.
func check(c *container.InspectResponse) error {
	if len(c.ID) != idLength || strings.Trim(c.ID, "0123456789abcdef") != "" {
		return fmt.Errorf("cannot adopt container %q: its id has not the form of an id in CRI, 64 hex digits: %w", c.ID, errs.Invalid)
	}
	return nil
}

const idLength = 64

// times reads the times of a container, in nanoseconds since 1970, 0 for none.
func times(c *container.InspectResponse) (created, started int64) {
	return nanoseconds(c.Created), nanoseconds(c.State.StartedAt)
}

func nanoseconds(text string) int64 {
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil || at.Year() <= 1 {
		return 0
	}
	return at.UnixNano()
}

// namespaceMode is NODE for a namespace of the host, and own otherwise.
func namespaceMode(onHost bool, own runtimeapi.NamespaceMode) runtimeapi.NamespaceMode {
	if onHost {
		return runtimeapi.NamespaceMode_NODE
	}
	return own
}
