package view

import (
	"fmt"
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/pod/record"
)

// Warnings names the pods that must be made again, and names that several sandboxes or
// containers have.
func (v *View) Warnings() []string { return slices.Concat(v.unsafeInits(), v.sharedNames()) }

// unsafeInits warns of pods whose containers can reach the host, through an init that an
// earlier berth made: the init lives as long as the pod.
func (v *View) unsafeInits() []string {
	var warnings []string
	for _, rec := range v.records.Sandboxes.All() {
		if rec.State != record.SandboxReady {
			continue
		}
		if why := rec.EngineView(v.engine).Unsafe; why != "" {
			warnings = append(warnings, fmt.Sprintf("pod %s (sandbox %s) %s; delete the pod and create it again", rec.Name(), rec.ID, why))
		}
	}
	slices.Sort(warnings)
	return warnings
}

// sharedNames warns of names that several sandboxes or containers have.
func (v *View) sharedNames() []string {
	var warnings []string
	for _, ids := range v.records.Sandboxes.Shared() {
		shown := slices.DeleteFunc(ids, func(id string) bool {
			rec, err := v.records.Sandboxes.Get(id)
			return err != nil || !rec.Visible()
		})
		if len(shown) > 1 {
			warnings = append(warnings, sharedName("sandboxes", v.nameOfSandbox(shown[0]), shown))
		}
	}
	for _, ids := range v.records.Containers.Shared() {
		shown := slices.DeleteFunc(ids, func(id string) bool {
			rec, err := v.records.Containers.Get(id)
			return err != nil || !rec.Visible()
		})
		if len(shown) > 1 {
			warnings = append(warnings, sharedName("containers", v.nameOfContainer(shown[0]), shown))
		}
	}
	return warnings
}

func sharedName(things, name string, ids []string) string {
	return fmt.Sprintf("%d %s have the name %s: %s keeps it; stop and remove the others by id: %s",
		len(ids), things, name, ids[0], strings.Join(ids[1:], ", "))
}

func (v *View) nameOfSandbox(id string) string {
	if rec, err := v.records.Sandboxes.Get(id); err == nil {
		return rec.Name()
	}
	return id
}

func (v *View) nameOfContainer(id string) string {
	if rec, err := v.records.Containers.Get(id); err == nil {
		return rec.Name()
	}
	return id
}
