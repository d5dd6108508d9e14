package plugins

import (
	"cmp"
	"slices"

	"github.com/containerd/nri/pkg/api"
	"google.golang.org/protobuf/proto"
)

// maxSynchronize bounds the bytes of a Synchronize message: a message of ttrpc has 4 MiB at most,
// headers included.
//
// NRI's library splits what is longer, but not below four pods and four containers, and it fails if
// there are fewer than that of one kind. Then no plugin could connect while such a pod exists.
const maxSynchronize = 4<<20 - 16<<10

// leftOut is a field that a Synchronize message leaves out.
type leftOut struct {
	kind, id, field string
	// bytes is what the message saves, at least.
	bytes int
	clear func()
}

// fit makes pods and containers fit into one message of limit bytes: it clears environments,
// arguments and annotations, the longest first, and returns what it has cleared. The caller owns the
// objects.
func fit(pods []*api.PodSandbox, containers []*api.Container, limit int) []leftOut {
	excess := proto.Size(&api.SynchronizeRequest{Pods: pods, Containers: containers, More: true}) - limit
	if excess <= 0 {
		return nil
	}
	var fields []leftOut
	for _, pod := range pods {
		fields = append(fields, leftOut{"pod", pod.GetId(), "annotations", bytesOfMap(pod.GetAnnotations()), func() { pod.Annotations = nil }})
	}
	for _, c := range containers {
		fields = append(fields,
			leftOut{"container", c.GetId(), "env", bytesOf(c.GetEnv()), func() { c.Env = nil }},
			leftOut{"container", c.GetId(), "args", bytesOf(c.GetArgs()), func() { c.Args = nil }},
			leftOut{"container", c.GetId(), "annotations", bytesOfMap(c.GetAnnotations()), func() { c.Annotations = nil }})
	}
	slices.SortStableFunc(fields, func(a, b leftOut) int { return cmp.Compare(b.bytes, a.bytes) })
	for i, f := range fields {
		if excess <= 0 || f.bytes == 0 {
			return fields[:i]
		}
		f.clear()
		excess -= f.bytes
	}
	return fields
}

// bytesOf is the length of strings in a message, without their headers.
func bytesOf(values []string) int {
	n := 0
	for _, v := range values {
		n += len(v)
	}
	return n
}

func bytesOfMap(values map[string]string) int {
	n := 0
	for k, v := range values {
		n += len(k) + len(v)
	}
	return n
}
