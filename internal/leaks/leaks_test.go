package leaks

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/doctor"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/finding"
)

// found are the findings that are not ok.
func found(ctx context.Context, f *Facts) []doctor.Found {
	var all []doctor.Found
	for _, one := range doctor.Examine(ctx, f, Checks()) {
		if one.Level != finding.OK {
			all = append(all, one)
		}
	}
	return all
}

// planted is a leak, and the finding that explains it.
type planted struct {
	name  string
	plant func(w *world)
	id    string
	// object and fix are parts; %S, %R, %N are the directories of state, root and network namespaces.
	object, fix string
	// repaired: --repair removes it.
	repaired bool
}

// plantedLeaks are leaks of a berth that runs, or does not.
func plantedLeaks() []planted {
	return []planted{
		{"a network namespace", func(w *world) { w.file(w.netnsDir, "berth-default-"+lostID) }, "leak-netns", "%N/berth-default-" + lostID, "umount %N/berth-default-" + lostID, true},
		{"the root filesystem of a container", func(w *world) { w.mounts = append(w.mounts, Mount{9, w.state + "/images/rootfs/" + lostID, "overlay"}) }, "leak-mounts", "%S/images/rootfs/" + lostID, "umount -l %S/images/rootfs/" + lostID, true},
		{
			"the root filesystem of a container with a user namespace", func(w *world) {
				w.mounts = append(w.mounts, Mount{9, w.state + "/images/mapped/" + lostID + "/rootfs", "overlay"})
			},
			"leak-mounts", "%S/images/mapped/" + lostID + "/rootfs", "umount -l", true,
		},
		{"a mounted image", func(w *world) {
			w.mounts = append(w.mounts, Mount{9, w.state + "/images/rootfs/" + lostID + "-0123", "overlay"})
		}, "leak-mounts", "%S/images/rootfs/" + lostID + "-0123", "umount -l", true},
		{"the namespace of a sandbox", func(w *world) {
			w.mounts = append(w.mounts, Mount{9, w.state + "/engine/sandboxes/" + lostID + "/ipc", "nsfs"})
		}, "leak-mounts", "%S/engine/sandboxes/" + lostID + "/ipc", "umount -l", true},
		{"/dev/shm of a sandbox", func(w *world) {
			w.mounts = append(w.mounts, Mount{9, w.state + "/engine/sandboxes/" + lostID + "/shm", "tmpfs"})
		}, "leak-mounts", "%S/engine/sandboxes/" + lostID + "/shm", "umount -l", true},
		{"an empty cgroup", func(w *world) {
			w.cgroups["/berth-default"] = append(w.cgroups["/berth-default"], Cgroup{"/berth-default/" + lostID, "9", nil})
		}, "leak-cgroups", "/berth-default/" + lostID, "rmdir", true},
		{"a slice", func(w *world) {
			w.cgroups["/berth_default.slice"] = []Cgroup{{"/berth_default.slice/berth_default-pod" + lostID + ".slice", "9", nil}}
		}, "leak-cgroups", "/berth_default.slice/berth_default-pod" + lostID + ".slice", "systemctl stop berth_default-pod" + lostID + ".slice", false},
		{"processes", func(w *world) {
			w.cgroups["/berth-default"] = append(w.cgroups["/berth-default"], Cgroup{"/berth-default/" + lostID, "9", []string{"process 12 (sleep)"}})
		}, "leak-processes", "/berth-default/" + lostID, "kill them", true},
		{"a link", func(w *world) {
			w.links = append(w.links, Link{9, "vethc3", "berth sandbox " + lostID + " 10.88.0.9/16"})
		}, "leak-links", "vethc3", "ip link delete vethc3", true},
		{"a host port", func(w *world) { w.elements = append(w.elements, port("ports4", 81, "10.88.0.9")) }, "leak-nftables", "inet berth ports4", "start berth", true},
		{"a checked link", func(w *world) { w.elements = append(w.elements, frame("guarded", "vethc3")) }, "leak-nftables", "bridge berth guarded", "nft delete table bridge berth", true},
		{"an address of this berth", func(w *world) {
			w.write(w.file(w.root, "ipam/net/10.1.0.9"), lostID+"\r\neth0")
			w.file(w.root, "network/cni/cache/results", "net-"+lostID+"-eth0")
		}, "leak-addresses", "net 10.1.0.9", "within 15 minutes", true},
		{"an address of nobody", func(w *world) { w.write(w.file(w.root, "ipam/net/10.1.0.9"), "") }, "leak-addresses", "net 10.1.0.9", "within 15 minutes", true},
		{"an address of a program that is not known", func(w *world) { w.write(w.file(w.root, "ipam/net/10.1.0.9"), foreignID+"\r\neth0") }, "leak-addresses", "net 10.1.0.9", "rm %R/ipam/net/10.1.0.9", false},
		{"an attachment", func(w *world) { w.file(w.root, "pods/attachments", lostID+".json") }, "leak-attachments", "%R/pods/attachments/" + lostID + ".json", "restart berth", false},
		{"a container of the supervisor", func(w *world) { w.file(w.state, "supervisor/supervisor", lostID, "record.json") }, "leak-containers", lostID, "restart berth", false},
		{"what a container has written", func(w *world) { w.file(w.root, "images/containers", lostID, "record") }, "leak-files", "%R/images/containers/" + lostID, "restart berth", false},
		{"files on disk of a sandbox", func(w *world) { w.file(w.root, "pods/sandboxes", lostID, "hosts") }, "leak-files", "%R/pods/sandboxes/" + lostID, "restart berth", false},
		{"files on disk of a container", func(w *world) { w.file(w.root, "pods/containers", lostID, "restored/pages-1.img") }, "leak-files", "%R/pods/containers/" + lostID, "restart berth", false},
		{"files of a sandbox", func(w *world) { w.file(w.state, "engine/sandboxes", lostID, "hosts") }, "leak-files", "%S/engine/sandboxes/" + lostID, "restart berth", false},
	}
}

// TestPlantedLeaks: each single leak is found and explained, whether berth runs or not. The repair
// removes it and nothing else, and can be repeated.
func TestPlantedLeaks(t *testing.T) {
	for _, running := range []string{"berth runs", "berth does not run"} {
		for _, c := range plantedLeaks() {
			t.Run(running+", "+c.name, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				if running != "berth runs" {
					w.down()
				}
				well := w.snapshot()
				f := w.facts()
				if all := found(t.Context(), f); len(all) > 0 {
					t.Fatalf("without a leak: %+v", all)
				}
				c.plant(w)
				before := w.snapshot()
				places := strings.NewReplacer("%S", w.state, "%R", w.root, "%N", w.netnsDir)
				all := found(t.Context(), f)
				if len(all) != 1 || all[0].ID != c.id || !strings.Contains(all[0].Object, places.Replace(c.object)) || !strings.Contains(all[0].Fix, places.Replace(c.fix)) ||
					all[0].Level != finding.Warning || all[0].Evidence == "" || (all[0].Repair != "") != c.repaired {
					t.Fatalf("want one finding %s about %s with the fix %s, got %+v", c.id, places.Replace(c.object), places.Replace(c.fix), all)
				}
				if w.snapshot() != before || w.removed > 0 {
					t.Error("an examination changes something")
				}
				doctor.Repair(t.Context(), all, func(finding.Finding) {})
				if all[0].Repaired != c.repaired || all[0].Unrepaired != "" {
					t.Errorf("the repair: %+v", all[0].Finding)
				}
				after := w.snapshot()
				if c.repaired {
					// The result of ADD stays for berth, which runs DEL with it.
					w.remove(filepath.Join(w.root, "network/cni/cache"))
					after = w.snapshot()
				}
				want := before
				if c.repaired {
					want = well
				}
				if after != want {
					t.Errorf("after the repair:\n%s\nwant:\n%s", after, want)
				}
				removed := w.removed
				doctor.Repair(t.Context(), all, func(finding.Finding) {})
				if w.removed != removed || all[0].Unrepaired != "" {
					t.Errorf("a repeated repair removes something, or fails: %+v", all[0].Finding)
				}
			})
		}
	}
}

// TestRunningBerthOwnsItsTables: a berth with the built-in network makes its tables again itself.
func TestRunningBerthOwnsItsTables(t *testing.T) {
	w := newWorld(t)
	w.answer.Builtin = true
	w.elements = append(w.elements, port("ports4", 81, "10.88.0.9"))
	all := found(t.Context(), w.facts())
	doctor.Repair(t.Context(), all, func(finding.Finding) {})
	if len(all) != 1 || all[0].Repaired || !strings.Contains(all[0].Unrepaired, "makes its tables again itself") || w.removed > 0 {
		t.Errorf("%+v", all)
	}
}

// begin makes all objects of a pod, its record first; end removes them, its record last.
func (w *world) begin(id string) {
	w.file(w.state, "pods/sandboxes", id+".json")
	w.mu.Lock()
	w.mounts = append(w.mounts, Mount{100, w.state + "/engine/sandboxes/" + id + "/uts", "nsfs"})
	w.cgroups["/berth-default"] = append(w.cgroups["/berth-default"], Cgroup{"/berth-default/" + id, "100", []string{"process 9 (x)"}})
	w.links = append(w.links, Link{100, "veth100", "berth sandbox " + id + " 10.88.0.7/16"})
	w.mu.Unlock()
	w.file(w.netnsDir, "berth-default-"+id)
}

func (w *world) end(id string) {
	w.remove(filepath.Join(w.netnsDir, "berth-default-"+id))
	w.mu.Lock()
	w.mounts, w.links = w.mounts[:len(w.mounts)-1], w.links[:len(w.links)-1]
	w.cgroups["/berth-default"] = w.cgroups["/berth-default"][:1]
	w.mu.Unlock()
	w.remove(filepath.Join(w.state, "pods/sandboxes", id+".json"))
}

// TestPodsThatStartAndEnd: a pod that starts or ends at any point of an examination is no leak. Each list
// and each question is such a point.
func TestPodsThatStartAndEnd(t *testing.T) {
	for _, running := range []bool{true, false} {
		w := newWorld(t)
		w.answer.IDs = nil // of an older berth, or one that reads its records: those on disk are enough
		if !running {
			w.down()
		}
		at, begins, ends, there := 0, 0, 0, false
		step := func() {
			if at++; at == begins {
				w.begin(lostID)
				there = true
			}
			if at == ends && there {
				w.end(lostID)
				there = false
			}
		}
		answer := w.asked
		w.listed = func(string) { step() }
		w.asked = func(a Answer) (Answer, error) { step(); return answer(a) }
		f := w.facts()
		examine := func(begin, end int) (points int) {
			at, begins, ends = 0, begin, end
			if all := found(t.Context(), f); len(all) > 0 {
				t.Fatalf("a pod that begins at %d and ends at %d: %+v", begin, end, all)
			}
			if points = at; there {
				w.end(lostID)
				there = false
			}
			return points
		}
		points := examine(0, 0)
		for begin := 1; begin <= points; begin++ {
			examine(begin, 0)
			for lives := range 5 { // the looks at one kind of objects are as close as that
				examine(begin, begin+lives)
			}
		}
		if points < 10 {
			t.Errorf("only %d points", points)
		}
	}
}

// TestRepairLooksAgain: what has a record at the time of the repair is not touched, and neither is
// another object with its name.
func TestRepairLooksAgain(t *testing.T) {
	plant := func(w *world) {
		w.mounts = append(w.mounts, Mount{9, w.state + "/images/rootfs/" + lostID, "overlay"})
	}
	for name, change := range map[string]func(w *world){
		"a record on disk":        func(w *world) { w.file(w.state, "pods/containers", lostID+".json") },
		"a record in memory":      func(w *world) { w.answer.IDs = append(w.answer.IDs, lostID) },
		"another mount":           func(w *world) { w.mounts[len(w.mounts)-1].ID = 10 },
		"it is gone":              func(w *world) { w.mounts = w.mounts[:len(w.mounts)-1] },
		"berth is elsewhere":      func(w *world) { w.elsewhere = true },
		"records that are gone":   func(w *world) { w.remove(filepath.Join(w.state, "pods/sandboxes")) },
		"another berth":           func(w *world) { w.answer.State = "/run/other" },
		"a berth that fails":      func(w *world) { w.asked = func(Answer) (Answer, error) { return Answer{}, errs.State } },
		"records without a right": func(w *world) { w.remove(w.state + "/pods/containers"); w.file(w.state, "pods/containers") },
	} {
		w := newWorld(t)
		plant(w)
		lock, err := os.Create(filepath.Join(w.state, "daemon.lock"))
		if err != nil {
			t.Fatal(err)
		}
		lock.Close()
		f := w.facts()
		all := found(t.Context(), f)
		if len(all) != 1 {
			t.Fatalf("%s: %+v", name, all)
		}
		f.held = func(string) (int, error) { return 1, nil }
		change(w)
		doctor.Repair(t.Context(), all, func(finding.Finding) {})
		if w.removed > 0 {
			t.Errorf("%s: the repair removes something: %+v", name, all[0].Finding)
		}
		if name != "it is gone" && name != "another mount" && all[0].Unrepaired == "" {
			t.Errorf("%s: no reason: %+v", name, all[0].Finding)
		}
	}
}

// TestUnreadableRecords: nothing is a leak where records cannot be read.
func TestUnreadableRecords(t *testing.T) {
	w := newWorld(t)
	w.mounts = append(w.mounts, Mount{9, w.state + "/images/rootfs/" + lostID, "overlay"})
	w.remove(w.state + "/pods/containers")
	w.file(w.state, "pods/containers") // a file cannot be listed
	for _, one := range found(t.Context(), w.facts()) {
		if !strings.Contains(one.Evidence, "cannot be checked") || one.Mend != nil {
			t.Errorf("%+v", one.Finding)
		}
	}
}

// TestSupervisedProcesses: while berth does not run and its supervisor does, processes are left to the
// next start of berth.
func TestSupervisedProcesses(t *testing.T) {
	w := newWorld(t)
	w.down()
	w.cgroups["/berth-default"] = append(w.cgroups["/berth-default"], Cgroup{"/berth-default/" + lostID, "9", []string{"process 12 (sleep)"}})
	f := w.facts()
	all := found(t.Context(), f)
	f.held = func(path string) (int, error) {
		if strings.Contains(path, "supervisor") {
			return 1, nil
		}
		return 0, nil
	}
	doctor.Repair(t.Context(), all, func(finding.Finding) {})
	if len(all) != 1 || !strings.Contains(all[0].Unrepaired, "start berth, whose start ends what has no record") || w.removed > 0 {
		t.Errorf("%+v", all)
	}
}

// TestAskErrors: an error of a berth that runs is no reason to believe that it has nothing. It is asked once, and the reason
// is in one place.
func TestAskErrors(t *testing.T) {
	w := newWorld(t)
	w.mounts = append(w.mounts, Mount{9, w.state + "/images/rootfs/" + lostID, "overlay"})
	asked := 0
	w.asked = func(Answer) (Answer, error) { asked++; return Answer{}, errors.New("broken") }
	f := w.facts()
	all := found(t.Context(), f)
	for _, one := range all {
		if one.Level != finding.Warning || one.Skipped != "berth does not say what it has records of (see the check daemon)" || one.Mend != nil {
			t.Errorf("%+v", one.Finding)
		}
	}
	if len(all) < 5 || asked != 1 {
		t.Errorf("asked %d times: %+v", asked, all)
	}
	said := doctor.Examine(t.Context(), f, doctor.Select(RecordChecks(), []string{"daemon"}))
	if len(said) != 1 || said[0].Level != finding.Warning || !strings.Contains(said[0].Evidence, "does not say what it has records of: broken") {
		t.Errorf("%+v", said)
	}
}
