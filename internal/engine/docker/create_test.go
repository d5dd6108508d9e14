package docker

import (
	"testing"

	"github.com/moby/moby/api/types/container"

	"github.com/berthrun/berth/internal/engine/docker/labels"
)

// TestIsLost: a container that has a name is removed only if no create of it is under way, and it is not
// known. Two creates of one name at a time would remove each other's container otherwise.
func TestIsLost(t *testing.T) {
	e := &Engine{cfg: Config{Instance: "one"}, objects: newObjects(nil, "one", nil, nil)}
	of := func(instance string, running bool) *container.InspectResponse {
		return &container.InspectResponse{
			ID: "x", State: &container.State{Running: running},
			Config: &container.Config{Labels: map[string]string{labels.Instance: instance, labels.ID: "c"}},
		}
	}
	want := func(when string, lost bool, got *container.InspectResponse) {
		t.Helper()
		if e.isLost(got) != lost {
			t.Errorf("%s: lost is %v", when, !lost)
		}
	}
	want("of an earlier create", true, of("one", false))
	want("that runs", false, of("one", true))
	want("of another berth", false, of("two", false))
	want("without a state", false, &container.InspectResponse{})
	end := e.objects.create("c")
	want("whose create is under way", false, of("one", false))
	e.objects.put("c", object{engineID: "x"})
	end()
	want("that is known", false, of("one", false))
	e.objects.forget("c")
	want("that was forgotten", true, of("one", false))
}
