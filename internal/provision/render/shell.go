package render

import (
	"cmp"
	_ "embed"
	"encoding/base64"
	"fmt"
	"path"
	"strconv"
	"strings"

	"github.com/berthrun/berth/internal/credential"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/preload"
	"github.com/berthrun/berth/internal/provision/startpolicy"
	"github.com/berthrun/berth/internal/provision/tasks"
)

// lib has the shell functions that the steps call.
//
//go:embed lib.sh
var lib string

// unitDir is where units and their drop-ins go.
const unitDir = "/etc/systemd/system/"

// shell writes tasks as calls of lib. A format that handles files, packages and accounts itself
// leaves them out.
type shell struct {
	*parts
	// bare leaves out regular files, packages and accounts.
	bare bool
	// local also allows assets from paths of the machine.
	local bool
}

// quote makes one word of the shell.
func quote(word string) string {
	if word != "" && strings.Trim(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-:=@,+") == "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

func call(words ...string) string {
	quoted := make([]string, len(words))
	for i, word := range words {
		quoted[i] = quote(word)
	}
	return strings.Join(quoted, " ")
}

// step is one task: a line that names it, then its calls; empty if it needs none.
func (s *shell) step(task provision.Task) string {
	asks := task.Meta().Restarts
	var lines []string
	for _, f := range filesOf(task) {
		switch {
		case !s.bare:
			lines = append(lines, put("put", f))
		case len(asks) > 0 || strings.HasPrefix(f.Path, unitDir):
			lines = append(lines, call("changed", f.Path)) // a package may have started the unit before
		}
	}
	switch task := task.(type) {
	case tasks.File:
		lines = s.file(task, lines)
	case tasks.Dir:
		lines = append(lines, call("directory", task.Path, octal(orMode(task.Mode, 0o755)), owner(task.Owner), owner(task.Group)))
	case tasks.Link:
		lines = append(lines, call("symlink", task.Target, task.Path))
	case tasks.JSONKeys:
		lines = append(lines, put("put_alone", wholeJSON(task)))
	case tasks.Packages:
		if !s.bare {
			lines = append(lines, s.packages(task)...)
		}
	case tasks.Group, tasks.User:
		if !s.bare {
			lines = append(lines, account(task))
		}
	case tasks.Asset:
		lines = append(lines, s.asset(task)...)
	case tasks.Modules:
		lines = append(lines, modules(task)...)
	case tasks.Sysctls:
		lines = append(lines, settings(task)...)
	case tasks.Swap:
		lines = append(lines, s.swap(task)...)
	case tasks.Unit:
		asks = append([]string{task.Name}, asks...)
		lines = append(lines, call(unitWords(task)...))
	case preload.Archive:
		lines = append(lines, s.image(task)...)
	default:
		s.refuse(task.ID(), "has no form outside of `berth node apply`")
	}
	if len(lines) == 0 {
		return ""
	}
	return call("step", task.ID(), strings.Join(asks, " ")) + "\n" + strings.Join(lines, "\n")
}

// file is a file of a kind that not all formats have.
func (s *shell) file(f tasks.File, lines []string) []string {
	switch {
	case f.Absent:
		return []string{call("gone", f.Path)}
	case f.Once && !s.bare:
		return []string{put("put_once", f)}
	}
	return lines
}

// put is a call with the file's content as its input.
func put(function string, f tasks.File) string {
	words := call(function, f.Path, octal(orMode(f.Mode, 0o644)), owner(f.Owner), owner(f.Group))
	if !isPlain(f.Content) {
		return "coded " + words + " <<'END'\n" + wrap(base64.StdEncoding.EncodeToString([]byte(f.Content))) + "END"
	}
	end := "END"
	for strings.Contains("\n"+f.Content, "\n"+end+"\n") {
		end += "_"
	}
	return words + " <<'" + end + "'\n" + f.Content + end
}

// isPlain reports whether a here-document keeps a text unchanged in every shell and locale: lines
// of printable ASCII and tabs. dash loses some of the bytes of other lines, if they begin as the
// document's end does.
func isPlain(content string) bool {
	return (content == "" || strings.HasSuffix(content, "\n")) &&
		!strings.ContainsFunc(content, func(r rune) bool { return (r < ' ' || r > '~') && r != '\n' && r != '\t' })
}

func wrap(text string) string {
	const width = 76
	var s strings.Builder
	for len(text) > width {
		s.WriteString(text[:width] + "\n")
		text = text[width:]
	}
	s.WriteString(text + "\n")
	return s.String()
}

// valid reports whether the script that has written a policy still runs; hold_units puts the
// numbers in.
const valid = `[ "$(cut -d ' ' -f 22 /proc/@PID@/stat 2>/dev/null)" = @SINCE@ ]`

// packages installs the packages, between the calls that hold their units and release them.
func (s *shell) packages(p tasks.Packages) []string {
	words := []string{"packages", s.Distro.Manager}
	for _, pkg := range p.Install {
		if pkg.Version != "" {
			pkg.Name += "=" + pkg.Version
		}
		words = append(words, pkg.Name)
	}
	if s.Distro.Manager != "apt" || len(p.Hold) == 0 {
		return []string{call(words...)}
	}
	return []string{"hold_units <<'END'\n" + startpolicy.Text(p.Hold, valid) + "END", call(words...), "free_units"}
}

// account is a group or a user.
func account(task provision.Task) string {
	var words []string
	option := func(name, value string, set bool) {
		if set {
			words = append(words, name, value)
		}
	}
	switch task := task.(type) {
	case tasks.Group:
		words = []string{"group", task.Name}
		option("-g", strconv.Itoa(task.GID), task.GID >= 0)
		if task.System {
			words = append(words, "-r")
		}
	case tasks.User:
		words = []string{"user", task.Name, strings.Join(task.Groups, ",")}
		option("-u", strconv.Itoa(task.UID), task.UID >= 0)
		option("-g", strconv.Itoa(task.GID), task.GID >= 0)
		option("-d", task.Home, task.Home != "")
		option("-s", task.Shell, task.Shell != "")
		words = append(words, "-M") // as apply
		if task.System {
			words = append(words, "-r")
		}
	}
	return call(words...)
}

// asset fetches, unpacks and picks.
func (s *shell) asset(a tasks.Asset) []string {
	lines := s.fetch(a.ID(), a.Ref)
	if lines == nil {
		return nil
	}
	lines = append(lines, call("unpack", path.Base(a.Ref.Sources[0]), a.Ref.Format))
	for _, p := range a.Pick {
		words := []string{
			"pick", p.What, p.Dir, p.As, octal(orMode(p.Mode, 0o755)),
			strconv.Itoa(p.Min), strconv.Itoa(p.Max), strings.Join(p.Except, " "),
		}
		for _, layout := range p.Layouts {
			words = append(words, strings.Join(layout, " "))
		}
		lines = append(lines, call(words...))
	}
	return append(lines, "picked")
}

// fetch brings an asset into the cache; nil when it is refused.
func (s *shell) fetch(what string, ref provision.AssetRef) []string {
	sources := fetchable(ref, s.local)
	algorithm, hex, _ := strings.Cut(ref.Digest, ":")
	switch {
	case len(sources) == 0:
		s.refuse(what, "comes from %s, which only berth fetches; name a mirror with http or https", ref.Shown())
		return nil
	case hex == "":
		s.refuse(what, "is a directory without a digest")
		return nil
	}
	var lines []string
	if !ref.Access.None() {
		if hosts := s.hostsOf(ref.Access.Credentials); hosts != nil {
			s.refuse(what, "%s names hosts, which only berth reads; name a file with user:password, or a source that needs no credentials", ref.Access.Credentials)
			return nil
		}
		a := ref.Access
		lines = append(lines, call(append([]string{"access", ref.FirstServer(), a.Credentials, a.ClientCert, cmp.Or(a.ClientKey, a.ClientCert)}, a.CA...)...))
	}
	return append(lines, call(append([]string{"fetch", algorithm, hex}, sources...)...))
}

// hostsOf lists the hosts that a credentials file names; nil where it names none.
func (s *shell) hostsOf(file string) []string {
	said, err := credential.Parse(file, s.Credentials[file])
	if err != nil {
		return nil // the machine checks it
	}
	return said.Hosts()
}

func modules(m tasks.Modules) []string {
	var lines []string
	for _, name := range m.Names {
		lines = append(lines, call("module", name, among(name, m.Optional)))
	}
	return lines
}

func settings(s tasks.Sysctls) []string {
	var lines []string
	for _, v := range s.Values {
		key := v.Key
		// Where the first separator is a dot, slashes stand for dots of names.
		if i := strings.IndexAny(key, "./"); i >= 0 && key[i] == '.' {
			key = strings.Map(func(r rune) rune {
				switch r {
				case '.':
					return '/'
				case '/':
					return '.'
				}
				return r
			}, key)
		}
		optional := ""
		if v.Optional {
			optional = "optional"
		}
		lines = append(lines, call("setting", "/proc/sys/"+key, optional, strings.Join(strings.Fields(v.Value), " ")))
	}
	return lines
}

func (s *shell) swap(task tasks.Swap) []string {
	if task.On {
		s.refuse(task.ID(), "a swap file is made by `berth node apply` only")
		return nil
	}
	return []string{"swap_off"}
}

// unitWords enables and starts the unit as its task says.
func unitWords(u tasks.Unit) []string {
	enable, running, optional := "", "", ""
	switch {
	case u.Enable == nil:
	case *u.Enable:
		enable = "yes"
	default:
		enable = "no"
	}
	switch {
	case u.Running == tasks.Stopped:
		running = "no"
	case u.Running == tasks.Started && u.ReloadToRestart:
		running = "reload"
	case u.Running == tasks.Started:
		running = "yes"
	}
	if u.Optional {
		optional = "optional"
	}
	return []string{"unit", u.Name, enable, running, optional}
}

// image loads an archive when the runtime runs.
func (s *shell) image(i preload.Archive) []string {
	if len(fetchable(i.Ref, s.local)) == 0 {
		s.leave(i.ID(), "comes from %s, which only berth reads; the runtime pulls it when a pod wants it", i.Ref.Shown())
		return nil
	}
	lines := s.fetch(i.ID(), i.Ref)
	if lines == nil {
		return nil
	}
	return append(lines, call(append([]string{"image"}, i.Load...)...))
}

// machineWords check that the script runs on the intended kind of machine.
func (p *parts) machineWords() string {
	return call("machine", p.Distro.ID, p.Distro.Version, machineName(p.Arch))
}

// machineName is what uname calls an architecture.
func machineName(arch string) string {
	if name, ok := map[string]string{
		"amd64": "x86_64", "arm64": "aarch64", "arm": "armv7l", "386": "i686", "loong64": "loongarch64",
	}[arch]; ok {
		return name
	}
	return arch // ppc64le, s390x, riscv64, …
}

// head is the comment that says where a rendering comes from.
func (p *parts) head() string {
	name := strings.TrimSpace(p.Distro.ID + " " + p.Distro.Version)
	return fmt.Sprintf("# Made by `berth node render` from the node file, for %s on %s. Changes belong there.\n", name, p.Arch)
}
