package leaks

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/doctor"
	"github.com/berthrun/berth/internal/finding"
)

// recorded is a world whose records are as berth writes them.
func recorded(t *testing.T) *world {
	w := newWorld(t)
	w.sandbox("ready")
	w.write(w.state+"/pods/containers/"+containerID+".json", fmt.Sprintf(`{"version":1,"id":%q,"record":{"id":%[1]q,"state":"running","config":{"metadata":{"name":"c"}},"engine":{}}}`, containerID))
	w.write(w.root+"/pods/attachments/"+sandboxID+".json", fmt.Sprintf(`{"version":1,"id":%q,"record":{"id":%[1]q}}`, sandboxID))
	return w
}

// sandbox writes the record of the sandbox, with a state.
func (w *world) sandbox(state string) {
	w.write(w.state+"/pods/sandboxes/"+sandboxID+".json", fmt.Sprintf(
		`{"version":1,"id":%q,"record":{"id":%[1]q,"state":%q,"config":{"metadata":{"name":"p"}},"engine":{"netns":%q,"cgroupParent":%q}}}`,
		sandboxID, state, w.netnsDir+"/berth-default-"+sandboxID, "/berth-default/"+sandboxID))
}

// TestPlantedRecords: each damaged record, and each object that a record names and that is gone, is found and explained
// while berth runs, and while it does not. Nothing is repaired.
func TestPlantedRecords(t *testing.T) {
	remove := func(path string) func(w *world) { return func(w *world) { w.remove(w.places().Replace(path)) } }
	write := func(path, content string) func(w *world) {
		return func(w *world) { w.write(w.places().Replace(path), content) }
	}
	sandbox, container := "%S/pods/sandboxes/"+sandboxID+".json", "%S/pods/containers/"+containerID+".json"
	for _, c := range []struct {
		name  string
		plant func(w *world)
		level finding.Level
		// evidence and fix are parts.
		object, evidence, fix string
	}{
		{"the record of a sandbox that is cut off", write(sandbox, `{"version":1,"id":`), finding.Problem, sandbox, "the record of sandbox " + sandboxID + " cannot be read: the record is damaged", "berth pod rm --force " + sandboxID},
		{"an empty record", write(sandbox, ""), finding.Problem, sandbox, "cannot be read", "berth pod rm --force " + sandboxID},
		{"a record without its parts", write(sandbox, fmt.Sprintf(`{"version":1,"id":%q,"record":{"id":%[1]q}}`, sandboxID)), finding.Problem, sandbox, "state or config is missing", "berth pod rm --force"},
		{"the record of another sandbox", write(sandbox, fmt.Sprintf(`{"version":1,"id":%q,"record":{}}`, lostID)), finding.Problem, sandbox, "the file has the record of \"" + lostID + "\" instead", "berth pod rm --force"},
		{"the record of a later berth", write(container, `{"version":99,"id":"x"}`), finding.Problem, container, "has version 99", "berth container rm --force " + containerID},
		{"a directory in the place of a record", func(w *world) { w.remove(w.places().Replace(container)); w.file(w.places().Replace(container), "x") }, finding.Problem, container, "it is not a regular file", "berth container rm --force " + containerID},
		{"a container's record of zeros", write(container, strings.Repeat("\x00", 100)), finding.Problem, container, "the record of container " + containerID + " cannot be read", "berth container rm --force " + containerID},
		{"the record of a network", write("%R/pods/attachments/"+sandboxID+".json", "{"), finding.Problem, "%R/pods/attachments/" + sandboxID + ".json", "the record of the network of sandbox " + sandboxID, "delete the pod"},
		{"a network namespace that is gone", remove("%N/berth-default-" + sandboxID), finding.Problem, "%N/berth-default-" + sandboxID, "(" + sandbox + ") says that it is ready, but its network namespace", "berth pod stop " + sandboxID},
		{"a cgroup that is gone", func(w *world) { w.cgroups["/berth-default"] = nil }, finding.Problem, "/berth-default/" + sandboxID, "but its cgroup /berth-default/" + sandboxID + " is gone", "berth pod stop " + sandboxID},
		{"records in quarantine", func(w *world) { w.file(w.root, "pods/quarantine/abc.json") }, finding.Warning, "%R/pods/quarantine", "could not read are in %R/pods/quarantine: abc.json", "remove the directory"},
		{"a database in quarantine", func(w *world) { w.file(w.root, "images/quarantine/meta.db") }, finding.Warning, "%R/images/quarantine", "meta.db", "remove the directory"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := recorded(t)
			f := w.facts()
			if all := doctor.Examine(t.Context(), f, recordCheck()); len(all) != 1 || all[0].Level != finding.OK {
				t.Fatalf("without a fault: %+v", all)
			}
			c.plant(w)
			before := w.snapshot()
			all := doctor.Examine(t.Context(), f, recordCheck())
			in := w.places()
			if len(all) != 1 || all[0].ID != "records" || all[0].Level != c.level || all[0].Object != in.Replace(c.object) || !strings.Contains(all[0].Evidence, in.Replace(c.evidence)) ||
				!strings.Contains(all[0].Fix, in.Replace(c.fix)) || all[0].Docs != "docs/doctor.md#records" {
				t.Errorf("want one finding about %s, %q and %q, got %+v", in.Replace(c.object), in.Replace(c.evidence), c.fix, all)
			}
			doctor.Repair(t.Context(), all, func(finding.Finding) {})
			if w.snapshot() != before {
				t.Error("doctor changes something")
			}
		})
	}
}

// recordCheck is the check of records alone.
func recordCheck() []doctor.Check[*Facts] { return doctor.Select(RecordChecks(), []string{"records"}) }

func (w *world) places() *strings.Replacer {
	return strings.NewReplacer("%S", w.state, "%R", w.root, "%N", w.netnsDir)
}

// TestRecordsOfPodsThatEnd: a teardown removes objects while there still is a record, which then has another state. What
// is gone with its record before the second look is nothing either.
func TestRecordsOfPodsThatEnd(t *testing.T) {
	w := recorded(t)
	w.sandbox("stopping")
	w.remove(filepath.Join(w.netnsDir, "berth-default-"+sandboxID))
	if all := doctor.Examine(t.Context(), w.facts(), recordCheck()); len(all) != 1 || all[0].Level != finding.OK {
		t.Errorf("while it stops: %+v", all)
	}
	w.sandbox("ready")
	looks := 0
	w.listed = func(string) {
		if looks++; looks == 1 {
			w.remove(w.state + "/pods/sandboxes/" + sandboxID + ".json")
		}
	}
	if all := doctor.Examine(t.Context(), w.facts(), recordCheck()); len(all) != 1 || all[0].Level != finding.OK || looks != 1 {
		t.Errorf("after %d looks: %+v", looks, all)
	}
}
