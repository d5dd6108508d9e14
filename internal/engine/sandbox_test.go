package engine_test

import (
	"encoding/json"
	"testing"

	"github.com/berthrun/berth/internal/engine"
	"github.com/google/go-cmp/cmp"
)

// TestSandboxRoundTrip: the record of a sandbox has the engine's own fields beside the common ones,
// as in records of earlier versions.
func TestSandboxRoundTrip(t *testing.T) {
	for _, record := range []string{
		`{}`,
		`{"cgroupParent":"/p"}`,
		`{"cgroupParent":"/p","ipcns":"/i","netns":"/n","pid":7,"podInit":1}`,
		`{"processLabel":"u:r:container_t:s0:c1,c2"}`,
	} {
		var sb engine.Sandbox
		if err := json.Unmarshal([]byte(record), &sb); err != nil {
			t.Fatal(err)
		}
		got, err := json.Marshal(&sb)
		if err != nil || string(got) != record {
			t.Errorf("%s became %s, %v", record, got, err)
		}
	}
	var sb engine.Sandbox
	if err := json.Unmarshal([]byte(`{"netns":"/n","cgroupParent":"/p","pid":7,"ipcns":"/i"}`), &sb); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(engine.Sandbox{NetNS: "/n", CgroupParent: "/p", Pid: 7, Backend: json.RawMessage(`{"ipcns":"/i"}`)}, sb); diff != "" {
		t.Error(diff)
	}
	var own struct {
		IPC string `json:"ipcns"`
	}
	if err := sb.DecodeBackend(&own); err != nil || own.IPC != "/i" {
		t.Errorf("the engine's own part: %+v, %v", own, err)
	}
	sb.Backend = json.RawMessage(`"damaged"`)
	if _, err := json.Marshal(sb); err == nil {
		t.Error("a part that is no object is written")
	}
}
