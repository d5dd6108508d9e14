package nodefile

import (
	"cmp"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/berthrun/berth/internal/manifest"
)

// checker reports what the tags cannot check. It uses paths of the document; the reader knows their
// lines.
type checker struct {
	*manifest.Reader
	n *Node
}

func check(n *Node, r *manifest.Reader) {
	c := checker{r, n}
	c.runtime()
	c.handlers()
	c.service()
	c.registries()
	c.network()
	c.kernel()
	c.accounts()
	c.files()
	c.units()
	c.kubelet()
	c.images()
	c.proxy()
	c.boot()
}

// conflict reports a field that must not be set because of another.
func (c checker) conflict(path string, set bool, why string) {
	if set && c.Has(path) {
		c.Fault(path, "%s", why)
	}
}

// path checks a path on the machine; empty is the default.
func (c checker) path(at, path string) {
	if path == "" || c.Broken(at) {
		return
	}
	if !filepath.IsAbs(path) || filepath.Clean(path) != strings.TrimSuffix(path, "/") || path == "/" {
		c.Fault(at, "%q: want an absolute path other than /, without . and ..", path)
	}
}

// word refuses characters that would split a word in a unit file, a command line or a list.
func (c checker) word(at, text string) {
	if strings.ContainsAny(text, " \t\"'\\%$`") {
		c.Fault(at, "%q: want one word without spaces, quotes, backslashes, %% and $", text)
	}
}

func (c checker) match(at, text, pattern, want string) {
	if !c.Broken(at) && text != "" && !regexp.MustCompile(`^(?:`+pattern+`)$`).MatchString(text) {
		c.Fault(at, "%q: want %s", text, want)
	}
}

func (c checker) runtime() {
	rt := &c.n.Runtime
	if rt.Name == "" && !c.Broken("runtime") { // "runtime: null" has only defaults
		c.Fault("runtime.name", "is missing; want one of berth, containerd, crio, docker")
	}
	if rt.Version != "" {
		if _, err := ParseVersion(rt.Version); err != nil {
			c.Fault("runtime.version", "%v", err)
		}
	}
	for at, path := range map[string]string{
		"runtime.socket": rt.Socket, "runtime.root": rt.Root, "runtime.state": rt.State,
		"runtime.nri.socket": rt.NRI.Socket, "runtime.nvidia.runtimePath": rt.NVIDIA.Runtime,
	} {
		c.path(at, path)
		c.word(at, path)
	}
	if rt.Root != "" && rt.Root == rt.State {
		c.Fault("runtime.state", "%q: is runtime.root, too; want another directory, since this one dies at reboot", rt.State)
	}
	if len(rt.Socket) > 107 {
		c.Fault("runtime.socket", "%q: has %d bytes; want at most 107", rt.Socket, len(rt.Socket))
	}
	for i, dir := range rt.CDI.SpecDirs {
		c.path(fmt.Sprintf("runtime.cdi.specDirs[%d]", i), dir)
	}
	c.assets("runtime.assets", rt.Assets)
	c.conflict("runtime.assets", rt.SkipInstall && len(rt.Assets) > 0, "conflicts with runtime.skipInstall, which installs nothing; leave one of them out")
	c.override()
	c.conflict("runtime.config.additions", rt.Config.Override != "", "conflicts with runtime.config.override, which is the whole file; leave one of them out")
	for _, path := range sortedKeys(rt.Config.Additions) {
		at := "runtime.config.additions" + "[" + strconv.Quote(path) + "]"
		parts, err := SplitPath(path)
		if err != nil {
			c.Fault(at, "%v", err)
		} else if former := formerOwner(rt.Name, parts[0]); former != "" {
			c.Fault(at, "is a key of %s's configuration, and %s has no %q; leave this out (docs/migrate names the keys of berth)", former, rt.Name, parts[0])
		}
	}
	for _, key := range sortedKeys(rt.Environment) {
		c.match(pathIn("runtime.environment", key), key, `[A-Za-z_][A-Za-z0-9_]*`, "a name of letters, digits and _")
	}
	for i, option := range rt.Options {
		at := fmt.Sprintf("runtime.options[%d]", i)
		if !strings.HasPrefix(option, "-") && !c.Broken(at) {
			c.Fault(at, "%q: want an option that begins with -; its value goes with it, as in --name=value", option)
		}
		c.word(at, option)
	}
	c.byRuntime()
	c.nvidia()
}

// formerOwner returns the runtime whose configuration has a table, if the chosen runtime does not
// have that, and "" otherwise. A node file that changes from one runtime to another often keeps the
// additions of the former one.
func formerOwner(runtime, table string) string {
	switch {
	case table == "crio" && runtime != "crio":
		return "CRI-O"
	case runtime != "containerd" && slices.Contains([]string{"plugins", "proxy_plugins", "stream_processors", "timeouts", "grpc", "ttrpc"}, table):
		return "containerd"
	}
	return ""
}

// byRuntime refuses what the chosen runtime has not.
func (c checker) byRuntime() {
	rt := &c.n.Runtime
	switch rt.Name {
	case "berth":
		c.conflict("logs.rotate", c.n.Logs.Rotate, "berth never cuts a log; leave this out: the kubelet rotates, or another client that calls ReopenContainerLog")
		c.conflict("runtime.sandboxImage", rt.SandboxImage != "", "berth has no pause container, so no image for it; leave this out")
		c.conflict("runtime.snapshotter", rt.Snapshotter != "", "berth's own layers are overlays; leave this out (handlers.NAME.snapshotter of berth.toml names a proxy snapshotter)")
		c.noNRI("this version of berth serves no NRI plugins")
		c.conflict("runtime.nvidia.mode", rt.NVIDIA.Mode == "handler", "this version of berth has no handler for GPUs; leave this out: GPUs come by cdi")
		c.conflict("runtime.nvidia.default", rt.NVIDIA.Default, "this version of berth has no handler for GPUs; leave this out: GPUs come by cdi")
	case "docker":
		c.noNRI("docker serves no NRI plugins")
		c.conflict("runtime.sandboxImage", rt.SandboxImage != "", "berth has its own image for the sandboxes of docker; leave this out")
	case "crio":
		c.conflict("runtime.state", rt.State != "", "crio has no such option; leave this out, and set runtime.root")
	}
	if rt.Name == "containerd" || rt.Name == "crio" {
		c.conflict("logs.rotate", c.n.Logs.Rotate && c.n.Kubelet.Enabled, "the kubelet rotates the logs of its containers; leave this out")
	}
	c.match("runtime.runtimeCgroups", rt.CgroupParent, `/?[a-z0-9][a-z0-9_.-]*\.slice`, "a slice such as /runtime.slice")
	c.conflict("runtime.runtimeCgroups", rt.CgroupParent != "" && rt.CgroupDriver == "cgroupfs", "is for the systemd driver; leave this out, or set runtime.cgroupDriver: systemd")
}

// noNRI refuses all that is said of NRI, but that it is off.
func (c checker) noNRI(why string) {
	nri := c.n.Runtime.NRI
	c.conflict("runtime.nri", (nri != NRI{}) && (nri.Enabled == nil || *nri.Enabled), why+"; leave this out")
}

func (c checker) nvidia() {
	nv := c.n.Runtime.NVIDIA
	c.conflict("runtime.nvidia.default", nv.Default && nv.Mode == "cdi", "there is no handler in mode cdi; leave this out, or set runtime.nvidia.mode: handler")
	c.conflict("runtime.nvidia.mode", nv.Enabled && nv.Mode == "cdi" && !c.n.Runtime.CDI.Enabled, "conflicts with runtime.cdi.enabled: false; leave one of them out")
	c.conflict("runtime.nvidia.default", nv.Default && c.n.Runtime.Default != "" && c.n.Runtime.Default != "nvidia",
		"conflicts with runtime.defaultHandler; leave one of them out")
}

// shim checks a shim of berth, which is found by its path or by its type name.
func (c checker) shim(at string, h Handler) {
	switch {
	case h.RuntimeType == "" && h.Path == "":
		c.Fault(at+".runtimeType", "is missing; want the type name of the shim, such as io.containerd.kata.v2, or its path")
	case h.RuntimeType != "" && h.Path != "":
		c.Fault(at+".runtimeType", "conflicts with the path of the shim; leave one of them out")
	case !slices.Contains([]string{"", "runtime", "api"}, h.Sandbox):
		c.Fault(at+".sandbox", "%q: want runtime or api, or leave this out", h.Sandbox)
	}
}

func (c checker) handlers() {
	rt := &c.n.Runtime
	names := map[string]string{"runc": ""}
	switch rt.Name {
	case "crio":
		names["crun"] = ""
	case "berth":
		names = map[string]string{} // its default handler has no name
	}
	if rt.GVisor.Enabled {
		names["runsc"] = "runtime.gvisor"
	}
	if rt.NVIDIA.Enabled {
		names["nvidia"] = "runtime.nvidia"
	}
	for i, h := range rt.Handlers {
		at := fmt.Sprintf("runtime.handlers[%d]", i)
		c.match(at+".name", h.Name, `[a-z0-9]([a-z0-9-]*[a-z0-9])?`, "small letters, digits and -")
		if other, taken := names[h.Name]; taken && other != "" {
			c.Fault(at+".name", "%q: is taken by %s; choose another name", h.Name, other)
		}
		names[h.Name] = at
		c.path(at+".path", h.Path)
		c.path(at+".configPath", h.ConfigPath)
		c.path(at+".root", h.Root)
		c.handlerFields(at, h)
		switch {
		case h.Type == "oci" && h.Path == "" && (h.Name != "runc" || rt.Name == "berth"):
			c.Fault(at+".path", "is missing; want the path of the OCI runtime")
		case h.Type == "oci" && h.RuntimeType != "":
			c.Fault(at+".runtimeType", "is for type shim; leave this out, or set type: shim")
		case h.Type == "shim" && rt.Name == "berth":
			c.shim(at, h)
		case h.Type == "shim" && h.RuntimeType == "" && rt.Name != "crio":
			c.Fault(at+".runtimeType", "is missing; want the type name of the shim, such as io.containerd.kata.v2")
		}
	}
	if _, known := names[rt.Default]; rt.Default != "" && !known {
		there := strings.Join(sortedKeys(names), ", ")
		c.Fault("runtime.defaultHandler", "%q: no such handler; there are %s", rt.Default, cmp.Or(there, "none in runtime.handlers"))
	}
}

func (c checker) service() {
	s := &c.n.Runtime.Service
	for at, limit := range map[string]string{
		"limitNOFILE": s.NoFile, "limitNPROC": s.NProc, "limitCORE": s.Core, "limitMEMLOCK": s.Memlock, "tasksMax": s.Tasks,
	} {
		c.match("runtime.unit."+at, limit, `infinity|\d+(:(\d+|infinity))?`, "a number, SOFT:HARD, or infinity")
	}
	if s.OOMScore != nil && (*s.OOMScore < -1000 || *s.OOMScore > 1000) {
		c.Fault("runtime.unit.oomScoreAdjust", "%d: want -1000 to 1000", *s.OOMScore)
	}
}

// assets checks a list of assets below at.
func (c checker) assets(at string, assets []Asset) {
	for i, a := range assets {
		c.asset(fmt.Sprintf("%s[%d]", at, i), a)
	}
}

func (c checker) asset(at string, a Asset) {
	c.sources(at, a.Source, a.Mirrors, a.Access)
	c.digest(at+".digest", a.Digest)
	// A path may be a directory, which only the machine knows; a file without a digest
	// is refused when it is read.
	if a.Digest == "" && !filepath.IsAbs(a.Source) && !c.Broken(at) {
		c.Fault(at+".digest", "is missing; want sha256: or sha512: and the hash of the file")
	}
	if strings.ContainsAny(a.Name, "/") || a.Name == "." || a.Name == ".." {
		c.Fault(at+".name", "%q: want a file name", a.Name)
	}
}

// sources checks where something comes from, and how it is reached.
func (c checker) sources(at, source string, mirrors []string, a Access) {
	c.source(at+".source", source)
	remote := !filepath.IsAbs(source)
	for i, mirror := range mirrors {
		c.source(fmt.Sprintf("%s.mirrors[%d]", at, i), mirror)
		remote = remote || !filepath.IsAbs(mirror)
	}
	c.accessFiles(at, a.CA, a.ClientCert, a.ClientKey, a.Credentials)
	if a.ClientCert == "" && a.ClientKey != "" {
		c.Fault(at+".clientKey", "is of no use alone; set clientCert, too")
	}
	if !remote {
		c.refuse(at, "is for servers, and there is none among source and mirrors; leave this out", "ca", "clientCert", "clientKey", "credentials")
	}
}

func (c checker) source(at, source string) {
	if source == "" || c.Broken(at) || filepath.IsAbs(source) {
		return
	}
	for _, scheme := range []string{"http://", "https://", "oci://"} {
		rest, ok := strings.CutPrefix(source, scheme)
		host, _, _ := strings.Cut(rest, "/")
		switch {
		case !ok || host == "":
		case strings.Contains(host, "@"):
			c.Fault(at, "has a password in it; use credentials")
			return
		default:
			return
		}
	}
	c.Fault(at, "%q: want an absolute path, http://, https:// or oci://", source)
}

func (c checker) digest(at, digest string) {
	c.match(at, digest, `sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}`, "sha256: and 64 digits 0-9a-f, or sha512: and 128")
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// pathIn names the entry of a map as the reader does.
func pathIn(path, key string) string { return manifest.Key(path, key) }

// SplitPath takes the dotted path of a configuration apart; a part with dots in it
// is in double quotes: plugins."io.containerd.cri.v1.images".x.
func SplitPath(path string) ([]string, error) {
	var parts []string
	rest := path
	for {
		var part string
		if strings.HasPrefix(rest, `"`) {
			end := strings.Index(rest[1:], `"`)
			if end < 0 {
				return nil, fmt.Errorf("%s: a quote is not closed; close it", path)
			}
			part, rest = rest[1:end+1], rest[end+2:]
		} else {
			end := strings.IndexAny(rest, `."`)
			if end < 0 {
				end = len(rest)
			}
			part, rest = rest[:end], rest[end:]
		}
		if part == "" {
			return nil, fmt.Errorf("%q: want parts with dots between them", path)
		}
		parts = append(parts, part)
		if rest == "" {
			return parts, nil
		}
		if rest[0] != '.' {
			return nil, fmt.Errorf("%s: want a dot after %q", path, part)
		}
		rest = rest[1:]
	}
}
