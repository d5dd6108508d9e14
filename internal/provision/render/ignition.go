package render

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/preload"
	"github.com/berthrun/berth/internal/provision/tasks"
)

// The parts of Ignition's configuration, version 3.4, that we write.
type (
	ignConfig struct {
		Ignition struct {
			Version string `json:"version"`
		} `json:"ignition"`
		Passwd struct {
			Groups []ignGroup `json:"groups,omitempty"`
			Users  []ignUser  `json:"users,omitempty"`
		} `json:"passwd,omitzero"`
		Storage struct {
			Directories []ignDir  `json:"directories,omitempty"`
			Files       []ignFile `json:"files,omitempty"`
			Links       []ignLink `json:"links,omitempty"`
		} `json:"storage,omitzero"`
		Systemd struct {
			Units []ignUnit `json:"units,omitempty"`
		} `json:"systemd,omitzero"`
	}
	ignOwner struct {
		ID   *int   `json:"id,omitempty"`
		Name string `json:"name,omitempty"`
	}
	ignDir struct {
		Path  string   `json:"path"`
		Mode  int      `json:"mode"`
		User  ignOwner `json:"user,omitzero"`
		Group ignOwner `json:"group,omitzero"`
	}
	ignFile struct {
		Path      string    `json:"path"`
		Mode      int       `json:"mode"`
		User      ignOwner  `json:"user,omitzero"`
		Group     ignOwner  `json:"group,omitzero"`
		Overwrite bool      `json:"overwrite"`
		Contents  ignSource `json:"contents"`
	}
	ignSource struct {
		Source       string           `json:"source"`
		Compression  string           `json:"compression,omitempty"`
		Verification *ignVerification `json:"verification,omitempty"`
	}
	ignVerification struct {
		Hash string `json:"hash"`
	}
	ignLink struct {
		Path      string `json:"path"`
		Target    string `json:"target"`
		Overwrite bool   `json:"overwrite"`
	}
	ignUnit struct {
		Name     string      `json:"name"`
		Enabled  *bool       `json:"enabled,omitempty"`
		Contents string      `json:"contents,omitempty"`
		DropIns  []ignDropIn `json:"dropins,omitempty"`
	}
	ignDropIn struct {
		Name     string `json:"name"`
		Contents string `json:"contents"`
	}
	ignGroup struct {
		Name   string `json:"name"`
		GID    *int   `json:"gid,omitempty"`
		System bool   `json:"system,omitempty"`
	}
	ignUser struct {
		Name         string   `json:"name"`
		UID          *int     `json:"uid,omitempty"`
		PrimaryGroup string   `json:"primaryGroup,omitempty"`
		Groups       []string `json:"groups,omitempty"`
		Home         string   `json:"homeDir,omitempty"`
		Shell        string   `json:"shell,omitempty"`
		System       bool     `json:"system,omitempty"`
		NoCreateHome bool     `json:"noCreateHome"`
	}
)

// FirstBootUnit applies the node file once, for what Ignition cannot say.
const FirstBootUnit = "berth-node-first-boot.service"

// ignitionForm is a rendering in progress. later holds the IDs of tasks that berth applies at first
// boot, and of those that need them.
type ignitionForm struct {
	*parts
	config ignConfig
	later  map[string]bool
}

// Ignition is a configuration of Ignition's version 3.4. Berth does at first boot what the format
// unsupported express, if berth is fetched; else the rendering is refused.
func Ignition(in Input) (Output, error) {
	p, err := take(in)
	if err != nil {
		return Output{}, err
	}
	g := &ignitionForm{parts: p, later: map[string]bool{}}
	g.config.Ignition.Version = "3.4.0"
	var reasons []Left
	for _, task := range p.tasks {
		reason := g.unsupported(task)
		if reason != "" {
			g.later[task.ID()] = true
			reasons = append(reasons, Left{What: task.ID(), Reason: reason})
			continue
		}
		if slices.ContainsFunc(task.Meta().Needs, func(id string) bool { return g.later[id] }) {
			g.later[task.ID()] = true
		}
		if err := g.add(task); err != nil {
			return Output{}, err
		}
	}
	g.firstBoot(reasons)
	data, err := json.MarshalIndent(g.config, "", "  ")
	if err != nil {
		return Output{}, fmt.Errorf("cannot write the configuration: %w", err)
	}
	return p.output(Output{Text: append(data, '\n')})
}

// unsupported says why Ignition cannot do a task; empty when it can.
func (g *ignitionForm) unsupported(task provision.Task) string {
	switch task := task.(type) {
	case tasks.File:
		if task.Absent {
			return "Ignition removes no files"
		}
		if task.Once {
			return "Ignition either writes a file over or fails when it is there"
		}
		return special(task.Mode)
	case tasks.Dir:
		return special(task.Mode)
	case tasks.Packages:
		return "Ignition installs no packages"
	case tasks.Asset:
		if file, plain := task.Plain(); !plain {
			return "Ignition unpacks no archives"
		} else if len(fetchable(task.Ref, false)) == 0 {
			return "Ignition cannot fetch " + file.Path + " from " + task.Ref.Shown()
		}
		if !task.Ref.Access.None() {
			return "Ignition reads no credentials and no certificates from files"
		}
	case tasks.Swap:
		return "Ignition cannot change /etc/fstab"
	case preload.Archive:
		return "Ignition runs no runtime"
	case tasks.Unit:
		if task.Enable == nil && task.Running != tasks.Leave {
			return "Ignition starts what is enabled, and nothing else"
		}
	case tasks.Link, tasks.JSONKeys, tasks.User, tasks.Group, tasks.Modules, tasks.Sysctls:
	default:
		return "Ignition has no form of it"
	}
	return ""
}

// special refuses modes that version 3.4 accepts and does not set.
func special(mode fs.FileMode) string {
	if mode&(fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky) != 0 {
		return "Ignition 3.4 sets no setuid, setgid or sticky bit"
	}
	return ""
}

// add takes a task that Ignition can do.
func (g *ignitionForm) add(task provision.Task) error {
	storage := &g.config.Storage
	switch task := task.(type) {
	case tasks.Unit:
		g.unit(task)
		return nil
	case tasks.Dir:
		storage.Directories = append(storage.Directories, ignDir{
			Path: task.Path, Mode: bits(orMode(task.Mode, 0o755)), User: newIgnOwner(task.Owner), Group: newIgnOwner(task.Group),
		})
	case tasks.Link:
		storage.Links = append(storage.Links, ignLink{Path: task.Path, Target: task.Target, Overwrite: true})
	case tasks.JSONKeys:
		return g.file(wholeJSON(task), false) // an existing file is somebody else's
	case tasks.Asset:
		g.fetched(task)
	case tasks.Group:
		g.config.Passwd.Groups = append(g.config.Passwd.Groups, ignGroup{Name: task.Name, GID: number(task.GID), System: task.System})
	case tasks.User:
		user := ignUser{Name: task.Name, UID: number(task.UID), Groups: task.Groups, Home: task.Home, Shell: task.Shell, System: task.System, NoCreateHome: true}
		for _, group := range g.config.Passwd.Groups {
			if group.GID != nil && *group.GID == task.GID {
				user.PrimaryGroup = group.Name
			}
		}
		g.config.Passwd.Users = append(g.config.Passwd.Users, user)
	}
	for _, f := range filesOf(task) {
		if err := g.file(f, true); err != nil {
			return err
		}
	}
	return nil
}

func (g *ignitionForm) file(f tasks.File, overwrite bool) error {
	source := ignSource{}
	switch {
	case len(f.Content) >= packAt:
		packed, err := zipped(f.Content)
		if err != nil {
			return err
		}
		source.Compression, source.Source = "gzip", dataURL(packed)
	default:
		source.Source = dataURL([]byte(f.Content))
	}
	g.config.Storage.Files = append(g.config.Storage.Files, ignFile{
		Path: f.Path, Mode: bits(orMode(f.Mode, 0o644)), User: newIgnOwner(f.Owner), Group: newIgnOwner(f.Group), Overwrite: overwrite, Contents: source,
	})
	return nil
}

func dataURL(data []byte) string {
	return "data:;base64," + base64.StdEncoding.EncodeToString(data)
}

// fetched is an asset that is one file.
func (g *ignitionForm) fetched(a tasks.Asset) {
	file, _ := a.Plain()
	algorithm, hex, _ := strings.Cut(a.Ref.Digest, ":")
	g.config.Storage.Files = append(g.config.Storage.Files, ignFile{
		Path: file.Path, Mode: bits(file.Mode), Overwrite: true,
		Contents: ignSource{Source: fetchable(a.Ref, false)[0], Verification: &ignVerification{Hash: algorithm + "-" + hex}},
	})
}

// unit writes a unit's files, and enables it unless its needs come later: then berth enables it,
// when all is in place.
func (g *ignitionForm) unit(u tasks.Unit) {
	unit := ignUnit{Name: u.Name, Contents: u.Content}
	for _, name := range slices.Sorted(maps.Keys(u.DropIns)) {
		unit.DropIns = append(unit.DropIns, ignDropIn{Name: name, Contents: u.DropIns[name]})
	}
	if !g.later[u.ID()] && !u.Optional {
		unit.Enabled = u.Enable
	}
	if unit.Contents != "" || len(unit.DropIns) > 0 || unit.Enabled != nil {
		g.config.Systemd.Units = append(g.config.Systemd.Units, unit)
	}
}

// firstBoot leaves the rest to berth.
func (g *ignitionForm) firstBoot(rest []Left) {
	if len(rest) == 0 {
		return
	}
	bin := g.Distro.BinDir + "/berth"
	if g.NodePath == "" || !g.brings(bin) {
		for _, r := range rest {
			g.refuse(r.What, "%s; with --berth and --berth-digest berth does it at first boot", r.Reason)
		}
		return
	}
	for _, r := range rest {
		g.leave(r.What, "%s; %s does it", r.Reason, FirstBootUnit)
	}
	on := true
	g.config.Systemd.Units = append(g.config.Systemd.Units, ignUnit{
		Name: FirstBootUnit, Enabled: &on,
		Contents: "# Made by `berth node render` from the node file.\n[Unit]\nDescription=makes this machine the node of its node file\n" +
			"Wants=network-online.target\nAfter=network-online.target local-fs.target dbus.service\nConditionPathExists=!" + firstBootDone + "\n\n" +
			"[Service]\nType=oneshot\nRemainAfterExit=yes\nRestart=on-failure\nRestartSec=10\n" +
			"ExecStart=" + bin + " node apply --yes --wait --file " + g.NodePath + "\nExecStartPost=/bin/touch " + firstBootDone + "\n\n" +
			"[Install]\nWantedBy=multi-user.target\n",
	})
}

// brings reports whether berth will be at a path, and adds its download if possible.
func (g *ignitionForm) brings(bin string) bool {
	there := slices.Contains(g.Programs, bin) || slices.ContainsFunc(g.config.Storage.Files, func(f ignFile) bool { return f.Path == bin })
	if there || g.Berth.Source == "" {
		return there
	}
	g.fetched(tasks.Asset{
		Ref:  provision.AssetRef{Name: "berth", Sources: []string{g.Berth.Source}, Digest: g.Berth.Digest, Format: "raw"},
		Pick: []tasks.Pick{{What: "berth", Layouts: [][]string{{"*"}}, Dir: g.Distro.BinDir, As: "berth", Min: 1, Max: 1}},
	})
	return true
}

// firstBootDone exists once the first apply succeeded.
const firstBootDone = "/var/lib/berth/node/first-boot-done"

func newIgnOwner(name string) ignOwner {
	if n, ok := id(name); ok {
		return ignOwner{ID: &n}
	}
	return ignOwner{Name: name}
}

// number is nil for what the system chooses.
func number(n int) *int {
	if n < 0 {
		return nil
	}
	return &n
}
