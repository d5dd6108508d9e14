package node

import (
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/node/nodefile"
	"github.com/berthrun/berth/internal/provision/tasks"
)

// accounts are the user's groups and users. All of them come first, since files and
// packages may name them.
func (b *builder) accounts() {
	known := map[string]bool{}
	for i, g := range b.n.Groups {
		b.before(tasks.Group{M: b.meta(fmt.Sprintf("groups[%d]", i)), Group: provision.Group{Name: g.Name, GID: number(g.GID), System: g.System}})
		known[g.Name] = true
	}
	b.makeDockerGroup(known)
	for i, u := range b.n.Users {
		task := tasks.User{M: b.meta(fmt.Sprintf("users[%d]", i)), User: provision.User{
			Name: u.Name, UID: number(u.UID), GID: -1, Home: u.Home, Shell: u.Shell, System: u.System,
			Groups: slices.Sorted(slices.Values(u.Groups)),
		}}
		if u.Group != "" {
			task.GID = b.groupNumber(u.Group)
			if task.GID < 0 {
				task.Groups = append(task.Groups, u.Group)
			}
		}
		for _, group := range append(slices.Clone(u.Groups), u.Group) {
			if known[group] {
				task.M.Needs = append(task.M.Needs, "group "+group)
			}
		}
		b.before(task)
	}
}

// makeDockerGroup creates the group that docker's socket belongs to. Docker's packages also create
// it, and leave it when they are removed.
func (b *builder) makeDockerGroup(known map[string]bool) {
	if b.rt.name != "docker" || b.n.Runtime.SkipInstall || b.f.Distro.Immutable {
		return
	}
	task := tasks.Group{M: b.meta("runtime"), Group: provision.Group{Name: "docker", GID: -1, System: true}}
	if !known["docker"] {
		b.before(task)
		known["docker"] = true
	}
	b.dockerGroup = []string{task.ID()}
}

func number(n *int) int {
	if n == nil {
		return -1
	}
	return *n
}

// groupNumber is the gid of one of the node file's groups, -1 if it sets none.
func (b *builder) groupNumber(name string) int {
	for _, g := range b.n.Groups {
		if g.Name == name {
			return number(g.GID)
		}
	}
	return -1
}

// owners lists the tasks of the accounts that a file belongs to.
func (b *builder) owners(user, group string) []string {
	var needs []string
	if slices.ContainsFunc(b.n.Users, func(u nodefile.User) bool { return u.Name == user }) {
		needs = append(needs, "user "+user)
	}
	if slices.ContainsFunc(b.n.Groups, func(g nodefile.Group) bool { return g.Name == group }) {
		needs = append(needs, "group "+group)
	}
	return needs
}

// files are the user's own.
func (b *builder) files() {
	for i, f := range b.n.Files {
		if f.Source != nil && f.Source.Arch != "" && f.Source.Arch != b.f.Arch {
			continue
		}
		meta := provision.Meta{Why: fmt.Sprintf("files[%d]", i), Needs: append(b.owners(f.Owner, f.Group), b.installed...), Restarts: f.Restarts}
		// A file goes into a directory of the list after that directory.
		for _, other := range b.n.Files {
			if other.Type == "directory" && other.Path != f.Path && strings.HasPrefix(f.Path, other.Path+"/") {
				meta.Needs = append(meta.Needs, "dir "+other.Path)
			}
		}
		mode := fs.FileMode(f.FileMode() & 0o777)
		for bit, flag := range map[uint32]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
			if f.FileMode()&bit != 0 {
				mode |= flag
			}
		}
		switch {
		case f.Type == "directory":
			b.before(tasks.Dir{M: meta, Path: f.Path, Mode: mode, Owner: f.Owner, Group: f.Group})
		case f.Type == "symlink":
			b.before(tasks.Link{M: meta, Path: f.Path, Target: f.Target})
		case f.Source != nil:
			ref := assetRef(f.Path, *f.Source)
			ref.Format = "raw"
			b.before(tasks.Asset{
				M: meta, Ref: ref,
				Pick: []tasks.Pick{{What: "file", Layouts: [][]string{{"*"}}, Dir: path.Dir(f.Path), As: path.Base(f.Path), Mode: mode, Min: 1, Max: 1}},
			})
		default:
			b.before(tasks.File{M: meta, Path: f.Path, Content: f.Content, Mode: mode, Owner: f.Owner, Group: f.Group, Once: f.Keep, Secret: b.n.Private(f)})
		}
	}
}

// units are the user's own, and drop-ins.
func (b *builder) units() {
	for i, u := range b.n.Units {
		task := tasks.Unit{
			M:    provision.Meta{Why: fmt.Sprintf("units[%d]", i), Needs: slices.Clone(b.ready)},
			Name: u.Name, Content: u.Content, DropIns: u.DropIns,
		}
		if u.Content != "" || u.Enabled != nil {
			on := nodefile.On(u.Enabled)
			task.Enable = &on
		}
		if u.Content != "" || u.Running != nil {
			task.Running = tasks.Started
			if !nodefile.On(u.Running) {
				task.Running = tasks.Stopped
			}
		}
		b.add(task)
	}
}

// hooks run the user's commands as units of their own, so that they run at boot too.
func (b *builder) hooks() {
	for i, h := range b.n.Hooks {
		if h.Disabled {
			continue
		}
		quoted := make([]string, len(h.Command))
		for j, arg := range h.Command {
			quoted[j] = unitQuote(arg)
		}
		order := "Before=" + b.rt.unit
		if h.When == "after" {
			order = "After=" + b.rt.criUnit
		}
		head := []string{"Description=hook " + h.Name, order}
		if len(h.Requires) > 0 {
			head = append(head, "Requires="+strings.Join(h.Requires, " "), "After="+strings.Join(h.Requires, " "))
		}
		yes := true
		task := tasks.Unit{
			M:    provision.Meta{Why: fmt.Sprintf("hooks[%d]", i), Needs: slices.Clone(b.ready)},
			Name: "berth-hook-" + h.Name + ".service", Enable: &yes, Running: tasks.Started,
			Content: unitText(section{"Unit", head},
				section{"Service", []string{"Type=oneshot", "RemainAfterExit=yes", "ExecStart=" + strings.Join(quoted, " ")}}, installed()),
		}
		if h.When == "after" {
			task.M.Needs = []string{"unit " + b.rt.criUnit}
			b.add(task)
			continue
		}
		b.before(task)
	}
}

// unitQuote quotes one literal argument of a unit's command line.
func unitQuote(arg string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "%", "%%", "$", "$$").Replace(arg) + `"`
}
