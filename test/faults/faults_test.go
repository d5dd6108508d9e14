package faults

import (
	"slices"
	"testing"

	check "github.com/berthrun/berth/internal/doctor"
	"github.com/berthrun/berth/internal/leaks"
	machine "github.com/berthrun/berth/internal/provision/doctor"
)

// TestFaults: there are at least 40 faults with names of their own, some of which are repaired, and each says what doctor
// must say.
func TestFaults(t *testing.T) {
	names, repaired := map[string]bool{}, 0
	for _, m := range Machines() {
		for _, f := range m.Faults {
			if names[f.Name] || f.Name == "" || f.Check == "" || f.Object == "" || f.Evidence == "" || f.Fix == "" {
				t.Errorf("%s: %+v", m.Name, f)
			}
			names[f.Name] = true
			if f.Repaired {
				repaired++
			}
		}
	}
	if len(names) < 40 || repaired < 10 {
		t.Errorf("%d faults, of which %d are repaired", len(names), repaired)
	}
}

// TestEveryCheckIsPlanted: each check of `berth doctor` finds a fault on a real machine.
func TestEveryCheckIsPlanted(t *testing.T) {
	planted := map[string]bool{
		"services": true, // it needs systemd as the init of the machine: test/systemd, and the unit tests of the check
	}
	for _, m := range Machines() {
		for _, f := range m.Faults {
			planted[f.Check] = true
		}
	}
	for _, info := range slices.Concat(check.Infos(machine.OfNode(true)), check.Infos(machine.OfHost()), check.Infos(leaks.RecordChecks()), check.Infos(leaks.Checks())) {
		if !planted[info.ID] {
			t.Errorf("no fault is planted for the check %s", info.ID)
		}
		delete(planted, info.ID)
	}
	for id := range planted {
		t.Errorf("no check is %s", id)
	}
}
