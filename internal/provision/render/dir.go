package render

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/preload"
	"github.com/berthrun/berth/internal/provision/tasks"
)

// Entry is one path of a tree.
type Entry struct {
	Path string `json:"path"`
	// Type is file, directory or symlink.
	Type string `json:"type"`
	// Mode is octal, with setuid, setgid and sticky as chmod has them; empty for a link.
	Mode string `json:"mode,omitempty"`
	// Owner and Group are names or numbers of the machine.
	Owner string `json:"owner"`
	Group string `json:"group"`
	// Target of a link.
	Target string `json:"target,omitempty"`
	// Digest of a file's content, if everybody may read it.
	Digest string `json:"digest,omitempty"`
	// Secret: only its owner may read it, wherever it is kept.
	Secret bool `json:"secret,omitempty"`
	// Task is the ID of its task.
	Task string `json:"task"`
	// Content of a file.
	Content []byte `json:"-"`
}

// Manifest has what a tree of files cannot hold: owners and modes, and what else a machine needs.
type Manifest struct {
	Distribution string     `json:"distribution"`
	Arch         string     `json:"arch"`
	Entries      []Entry    `json:"entries"`
	Packages     []string   `json:"packages,omitempty"`
	Groups       []string   `json:"groups,omitempty"`
	Users        []string   `json:"users,omitempty"`
	Assets       []DirAsset `json:"assets,omitempty"`
	Left         []Left     `json:"left,omitempty"`
}

// DirAsset is an asset that the user fetches into a tree.
type DirAsset struct {
	Name    string   `json:"name"`
	Sources []string `json:"sources"`
	Digest  string   `json:"digest"`
}

// Dir is the tree of files, directories and links; Text is the manifest.
func Dir(in Input) (Output, error) {
	p, err := take(in)
	if err != nil {
		return Output{}, err
	}
	m := Manifest{Distribution: strings.TrimSpace(in.Distro.ID + " " + in.Distro.Version), Arch: in.Arch, Entries: []Entry{}}
	for _, task := range p.tasks {
		p.entries(&m, task)
	}
	if err := m.parents(); err != nil {
		return Output{}, err
	}
	m.Left = p.left
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return Output{}, fmt.Errorf("cannot write the manifest: %w", err)
	}
	return p.output(Output{Text: append(text, '\n'), Tree: m.Entries})
}

// entries adds a task's entries of a tree.
func (p *parts) entries(m *Manifest, task provision.Task) {
	files := filesOf(task)
	switch task := task.(type) {
	case tasks.File:
		if task.Absent {
			p.leave(task.ID(), "a tree cannot say that a file shall not be there")
		}
	case tasks.JSONKeys:
		files = []tasks.File{wholeJSON(task)}
	case tasks.Dir:
		m.Entries = append(m.Entries, Entry{
			Path: task.Path, Type: "directory", Mode: octal(orMode(task.Mode, 0o755)), Owner: owner(task.Owner), Group: owner(task.Group), Task: task.ID(),
		})
	case tasks.Link:
		m.link(task.Path, task.Target, task.ID())
	case tasks.Packages:
		for _, pkg := range task.Install {
			m.Packages = append(m.Packages, strings.TrimSuffix(pkg.Name+"="+pkg.Version, "="))
		}
		p.leave(task.ID(), "packages are installed by the machine's manager; the manifest lists them")
	case tasks.Group:
		m.Groups = append(m.Groups, call(strings.Fields(account(task))[1:]...))
		p.leave(task.ID(), "accounts are made on the machine; the manifest has them as options of groupadd")
	case tasks.User:
		m.Users = append(m.Users, account(task))
		p.leave(task.ID(), "accounts are made on the machine; the manifest has them as options of useradd")
	case tasks.Asset:
		m.Assets = append(m.Assets, DirAsset{Name: task.Ref.Name, Sources: task.Ref.Sources, Digest: task.Ref.Digest})
		p.leave(task.ID(), "nothing is fetched; the manifest has its sources")
	case tasks.Unit:
		p.enabled(m, task)
	case tasks.Swap:
		p.leave(task.ID(), "changes /etc/fstab as the machine has it")
	case preload.Archive:
		p.leave(task.ID(), "images are loaded by a runtime that runs")
	case tasks.Modules, tasks.Sysctls: // the files take effect at boot
	default:
		p.leave(task.ID(), "has no files")
	}
	for _, f := range files {
		e := Entry{
			Path: f.Path, Type: "file", Mode: octal(orMode(f.Mode, 0o644)), Owner: owner(f.Owner), Group: owner(f.Group),
			Secret: isSecret(f, task), Task: task.ID(), Content: []byte(f.Content),
		}
		if !e.Secret && provision.Readable(orMode(f.Mode, 0o644)) { // short content could be guessed from its digest
			e.Digest = digest.FromString(f.Content).String()
		}
		m.Entries = append(m.Entries, e)
	}
}

func (m *Manifest) link(at, target, task string) {
	m.Entries = append(m.Entries, Entry{Path: at, Type: "symlink", Owner: "root", Group: "root", Target: target, Task: task})
}

// enabled adds the links that enable a unit of ours; other units are enabled on the machine.
func (p *parts) enabled(m *Manifest, u tasks.Unit) {
	if !isOn(u.Enable) {
		if u.Enable != nil && !u.Optional {
			p.leave(u.ID(), "a tree cannot disable a unit: systemctl disable %s", u.Name)
		}
		return
	}
	if u.Content == "" {
		p.leave(u.ID(), "its unit file is somebody else's: systemctl enable %s", u.Name)
		return
	}
	for line := range strings.Lines(u.Content) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		suffix := map[string]string{"WantedBy": ".wants/", "RequiredBy": ".requires/"}[key]
		if suffix == "" {
			continue
		}
		for wanting := range strings.FieldsSeq(value) {
			m.link(unitDir+wanting+suffix+u.Name, unitDir+u.Name, u.ID())
		}
	}
}

// parents adds the directories above all entries and sorts by path. A path twice is
// an error.
func (m *Manifest) parents() error {
	have := map[string]Entry{}
	for _, e := range m.Entries {
		if other, taken := have[e.Path]; taken {
			return fmt.Errorf("%s is of %s and of %s", e.Path, other.Task, e.Task)
		}
		have[e.Path] = e
	}
	for _, e := range m.Entries {
		for dir := path.Dir(e.Path); dir != "/"; dir = path.Dir(dir) {
			if _, there := have[dir]; !there {
				have[dir] = Entry{Path: dir, Type: "directory", Mode: "0755", Owner: "root", Group: "root", Task: e.Task}
			}
		}
	}
	m.Entries = slices.SortedFunc(maps.Values(have), func(a, b Entry) int { return cmp.Compare(a.Path, b.Path) })
	return nil
}
