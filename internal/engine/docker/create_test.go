package docker

import (
	"log/slog"
	"net/http"
	"testing"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/berthrun/berth/internal/docker/api"
	"github.com/berthrun/berth/internal/docker/fakeengine"
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

// TestNameOfAContainerThatIsBeingCreated: an engine takes a name before it knows the container. That is not
// removed, and the create takes another name.
func TestNameOfAContainerThatIsBeingCreated(t *testing.T) {
	const holder = "3cb359e85f2a59195d8416f481738675a5219c89418b10bd5b1b9db3de9a77db"
	names := make(chan string, 3)
	fake := fakeengine.Start(t, fakeengine.Script{Answers: map[string]http.HandlerFunc{
		"POST /containers/create": func(w http.ResponseWriter, r *http.Request) {
			name := r.URL.Query().Get("name")
			names <- name
			if name == "k8s_c_p_n_u_0" {
				fakeengine.Fail(http.StatusConflict, `Conflict. The container name "/`+name+`" is already in use by container "`+holder+`". You have to remove (or rename) that container to be able to reuse that name.`)(w, r)
				return
			}
			fakeengine.Text(`{"Id": "made"}`)(w, r)
		},
		"GET /containers/" + holder + "/json": fakeengine.Fail(http.StatusNotFound, "No such container: "+holder),
		"DELETE /containers/" + holder: func(w http.ResponseWriter, _ *http.Request) {
			t.Error("the container that has the name is removed")
			w.WriteHeader(http.StatusNoContent)
		},
	}})
	c, err := api.New(api.Options{Endpoint: fake.Endpoint})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	log := slog.New(slog.DiscardHandler)
	e := &Engine{cfg: Config{Instance: "one"}, client: c, log: log, objects: newObjects(c, "one", nil, log)}
	id, err := e.createContainer(t.Context(), client.ContainerCreateOptions{Name: "k8s_c_p_n_u_0", Config: &container.Config{Image: "x"}})
	if id != "made" || err != nil || len(names) != 3 {
		t.Errorf("%q, %v after %d creates", id, err, len(names))
	}
}
