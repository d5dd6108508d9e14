package plugins

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"google.golang.org/protobuf/proto"
)

// TestFit: the longest fields go first, and no more of them than necessary.
func TestFit(t *testing.T) {
	long := func(n int) string { return strings.Repeat("x", n) }
	for name, c := range map[string]struct {
		limit int
		want  []string
	}{
		"all":           {1000, nil},
		"environment":   {700, []string{"container a env"}},
		"two fields":    {400, []string{"container a env", "container b args"}},
		"annotations":   {250, []string{"container a env", "container b args", "pod p annotations"}},
		"does not help": {10, []string{"container a env", "container b args", "pod p annotations", "container b annotations", "container a args"}},
	} {
		t.Run(name, func(t *testing.T) {
			pods := []*api.PodSandbox{{Id: "p", Annotations: map[string]string{"k": long(150)}}}
			containers := []*api.Container{
				{Id: "a", Env: []string{long(200), long(120)}, Args: []string{long(10)}},
				{Id: "b", Args: []string{long(300)}, Annotations: map[string]string{"k": long(50)}},
			}
			var got []string
			for _, left := range fit(pods, containers, c.limit) {
				got = append(got, fmt.Sprintf("%s %s %s", left.kind, left.id, left.field))
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("left out: %q, want %q", got, c.want)
			}
			size := proto.Size(&api.SynchronizeRequest{Pods: pods, Containers: containers})
			if name != "does not help" && size > c.limit {
				t.Errorf("the message has %d bytes, more than %d", size, c.limit)
			}
		})
	}
}
