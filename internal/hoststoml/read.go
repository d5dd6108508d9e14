package hoststoml

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

// Description is a hosts.toml as it is written, with what is wrong in it. What containerd's reader refuses is a Fault, what it
// ignores is a warning.
type Description struct {
	// Endpoints are the mirrors in the order of the file, then the registry itself. There are none if the file is not TOML.
	Endpoints []Endpoint
	// Faults and Warnings are those of no endpoint.
	Faults, Warnings []Fault
}

// Endpoint is one server of a hosts.toml.
type Endpoint struct {
	// URL is as it is written, "" for a registry without the key server. Scheme and Host are what is asked.
	URL, Scheme, Host string
	// Line in the file, 0 if the endpoint is not written there.
	Line int
	// Capabilities in the order of the file; empty for all.
	Capabilities []string
	// CA are files of authorities, Client those of certificates with their keys; a key may be "".
	CA     []string
	Client [][2]string
	// SkipVerify accepts any certificate.
	SkipVerify bool
	// Header has the names of the headers, without their values, which may be secrets.
	Header []string
	// Faults and Warnings are those of the endpoint.
	Faults, Warnings []Fault

	lines map[string]int
}

// Fault is something wrong in a file.
type Fault struct {
	// Line in the file, 0 if that is not known.
	Line int
	// Text begins with the key. It has no value of a header.
	Text string
	// File is the file that the key names, if that one is at fault.
	File string
}

// At is the fault with its place.
func (f Fault) At(file string) string {
	if f.Line == 0 {
		return file + ": " + f.Text
	}
	return fmt.Sprintf("%s:%d: %s", file, f.Line, f.Text)
}

// AllFaults are those of the file and of its endpoints, in the order of their lines.
func (d *Description) AllFaults() []Fault {
	all := slices.Clone(d.Faults)
	for i := range d.Endpoints {
		all = append(all, d.Endpoints[i].Faults...)
	}
	return ordered(all)
}

// AllWarnings are those of the file and of its endpoints, in the order of their lines.
func (d *Description) AllWarnings() []Fault {
	all := slices.Clone(d.Warnings)
	for i := range d.Endpoints {
		all = append(all, d.Endpoints[i].Warnings...)
	}
	return ordered(all)
}

func ordered(all []Fault) []Fault {
	slices.SortStableFunc(all, func(a, b Fault) int { return a.Line - b.Line })
	return slices.Compact(all)
}

// typed has the types that containerd's reader demands. Its zero value is enough: what a file has is read from the tables.
type typed struct {
	typedHost
	Server string               `toml:"server"`
	Host   map[string]typedHost `toml:"host"`
}

type typedHost struct {
	Capabilities []string       `toml:"capabilities"`
	CA           any            `toml:"ca"`
	Client       any            `toml:"client"`
	SkipVerify   *bool          `toml:"skip_verify"`
	Header       map[string]any `toml:"header"`
	OverridePath bool           `toml:"override_path"`
	DialTimeout  string         `toml:"dial_timeout"`
}

// loose takes what the file has for each key. The library compares names of keys without regard to their case, as it does for
// containerd.
type loose struct {
	looseHost
	Server any                  `toml:"server"`
	Host   map[string]looseHost `toml:"host"`
}

type looseHost struct {
	Capabilities any `toml:"capabilities"`
	CA           any `toml:"ca"`
	Client       any `toml:"client"`
	SkipVerify   any `toml:"skip_verify"`
	Header       any `toml:"header"`
	OverridePath any `toml:"override_path"`
	DialTimeout  any `toml:"dial_timeout"`
}

// Describe reads a hosts.toml. It opens none of the files that it names.
func Describe(data []byte) *Description {
	var d Description
	var root map[string]any
	if err := toml.Unmarshal(data, &root); err != nil {
		d.Faults = append(d.Faults, decodeFault("is not TOML: ", err))
		return &d
	}
	p := places(data)
	if faults := hostFaults(root, p); len(faults) > 0 {
		d.Faults = append(d.Faults, faults...)
		return &d
	}
	var file loose
	if err := toml.Unmarshal(data, &file); err != nil {
		d.Faults = append(d.Faults, decodeFault("", err))
		return &d
	}
	for _, at := range p.hosts {
		e := describe(at.name, file.Host[at.name], p.of("host", at.name))
		e.Line = at.line
		if at.name == "" {
			e.fault("", `host."": names no host; want [host."https://HOST"]`)
		}
		d.Endpoints = append(d.Endpoints, e)
	}
	for name := range file.Host {
		if !slices.ContainsFunc(p.hosts, func(at place) bool { return at.name == name }) {
			d.Warnings = append(d.Warnings, Fault{Line: p.lines[key("host", name)], Text: fmt.Sprintf("host.%q: is ignored; want a table with the heading [host.%[1]q]", shown(name))})
		}
	}
	server, ok := file.Server.(string)
	last := describe(server, file.looseHost, p.of(), "server", "host")
	last.Line = p.lines[key("server")]
	if !ok && file.Server != nil {
		last.fault("server", "server: want a URL, not %v", file.Server)
	}
	if server == "" && ok == (file.Server != nil) {
		last.ignoredWithoutServer(file.looseHost)
	}
	d.Endpoints = append(d.Endpoints, last)
	if err := toml.Unmarshal(data, &typed{}); err != nil && len(d.AllFaults()) == 0 {
		d.Faults = append(d.Faults, decodeFault("", err))
	}
	slices.SortFunc(d.Warnings, func(a, b Fault) int { return strings.Compare(a.Text, b.Text) })
	return &d
}

// ignoredWithoutServer warns of keys of the registry itself that have an effect only with the key server.
func (e *Endpoint) ignoredWithoutServer(table looseHost) {
	for name, value := range map[string]any{"capabilities": table.Capabilities, "override_path": table.OverridePath} {
		if value != nil {
			e.Warnings = append(e.Warnings, Fault{Line: e.lines[name], Text: name + ": has no effect on the registry itself without the key server"})
		}
	}
	slices.SortFunc(e.Warnings, func(a, b Fault) int { return strings.Compare(a.Text, b.Text) })
}

// hostFaults are values where the tables of mirrors belong.
func hostFaults(root map[string]any, p *written) []Fault {
	const want = `host: want tables [host."https://HOST"]`
	var all []Fault
	for _, name := range sorted(root) {
		if !strings.EqualFold(name, "host") {
			continue
		}
		table, ok := root[name].(map[string]any)
		if !ok {
			all = append(all, Fault{Line: p.lines[key(name)], Text: want})
		}
		for _, mirror := range sorted(table) {
			if _, ok := table[mirror].(map[string]any); !ok {
				all = append(all, Fault{Line: p.lines[key(name, mirror)], Text: want})
			}
		}
	}
	return all
}

// decodeFault is the fault of the library that reads TOML.
func decodeFault(prefix string, err error) Fault {
	var decode *toml.DecodeError
	if !errors.As(err, &decode) {
		return Fault{Text: prefix + err.Error()}
	}
	line, _ := decode.Position()
	return Fault{Line: line, Text: prefix + strings.TrimPrefix(decode.Error(), "toml: ")}
}

// describe reads the table of one endpoint. lines are those of its keys. It may have the keys more, too.
func describe(address string, table looseHost, lines map[string]int, more ...string) Endpoint {
	e := Endpoint{URL: address, lines: lines}
	e.readURL()
	if table.Capabilities != nil {
		e.readCapabilities(table.Capabilities)
	}
	if table.CA != nil {
		e.CA = e.strings("ca", table.CA, "want a file, or a list of files", true)
	}
	if table.Client != nil {
		e.readClient(table.Client)
	}
	e.SkipVerify = e.truth("skip_verify", table.SkipVerify)
	e.truth("override_path", table.OverridePath)
	if table.DialTimeout != nil {
		text, ok := table.DialTimeout.(string)
		if ok && text != "" {
			_, err := time.ParseDuration(text)
			ok = err == nil
		}
		e.want("dial_timeout", ok, table.DialTimeout, `want a duration, such as "5s"`)
	}
	if table.Header != nil {
		e.readHeader(table.Header)
	}
	for _, name := range sorted(lines) {
		if !slices.Contains(append(more, "", "capabilities", "ca", "client", "skip_verify", "header", "override_path", "dial_timeout"), name) {
			e.Warnings = append(e.Warnings, Fault{Line: lines[name], Text: name + ": is not a key of hosts.toml, and has no effect"})
		}
	}
	return e
}

// truth reads true or false.
func (e *Endpoint) truth(name string, value any) bool {
	is, ok := value.(bool)
	e.want(name, ok || value == nil, value, "want true or false")
	return is
}

// fault notes a fault of the endpoint, at the line of a key, or at that of the endpoint for "".
func (e *Endpoint) fault(name, format string, args ...any) {
	e.Faults = append(e.Faults, Fault{Line: e.lines[name], Text: fmt.Sprintf(format, args...)})
}

// want notes a fault of a value unless ok.
func (e *Endpoint) want(name string, ok bool, value any, wanted string) {
	if !ok {
		e.fault(name, "%s: %s, not %s", name, wanted, quoted(value))
	}
}

func quoted(value any) string {
	if text, ok := value.(string); ok {
		return fmt.Sprintf("%q", text)
	}
	return fmt.Sprint(value)
}

// Shown is the URL without a user and a password.
func (e *Endpoint) Shown() string { return shown(e.URL) }

func shown(address string) string {
	scheme, rest, ok := strings.Cut(address, "://")
	if !ok {
		scheme, rest = "", address
	}
	// A password may have any character.
	rest = rest[strings.LastIndexByte(rest, '@')+1:]
	if ok {
		return scheme + "://" + rest
	}
	return rest
}

// readURL reads the address as containerd does: without a scheme it is https.
func (e *Endpoint) readURL() {
	if e.URL == "" {
		return
	}
	address := e.URL
	if !strings.HasPrefix(address, "http") {
		// containerd would ask the host that has the name of the scheme.
		if scheme, _, ok := strings.Cut(address, "://"); ok && !strings.Contains(scheme, "/") {
			e.fault("", "%q: the scheme %q is unknown; want http:// or https://", e.Shown(), scheme)
			return
		}
		address = "https://" + address
	}
	at, err := url.Parse(address)
	if err != nil || at.Host == "" || at.Scheme != "http" && at.Scheme != "https" {
		e.fault("", "%q: is not the URL of a server; want http:// or https:// and a host", e.Shown())
		return
	}
	e.Scheme, e.Host = at.Scheme, at.Host
}

func (e *Endpoint) readCapabilities(value any) {
	const wanted = "want a list of pull, resolve, push and referrers"
	list, ok := value.([]any)
	e.want("capabilities", ok, value, wanted)
	for _, item := range list {
		name, ok := item.(string)
		if !ok || !slices.Contains([]string{"pull", "resolve", "push", "referrers"}, strings.ToLower(name)) {
			e.want("capabilities", false, item, wanted)
			continue
		}
		e.Capabilities = append(e.Capabilities, strings.ToLower(name))
	}
}

// strings reads a list of strings, or one string if that is allowed.
func (e *Endpoint) strings(name string, value any, wanted string, one bool) []string {
	if text, ok := value.(string); ok && one {
		return []string{text}
	}
	list, ok := value.([]any)
	e.want(name, ok, value, wanted)
	var all []string
	for _, item := range list {
		text, ok := item.(string)
		e.want(name, ok, item, wanted)
		all = append(all, text)
	}
	return all
}

func (e *Endpoint) readClient(value any) {
	const wanted = `want a file, a list of files, or a list of pairs ["CERTIFICATE", "KEY"]`
	if text, ok := value.(string); ok {
		e.Client = [][2]string{{text}}
		return
	}
	list, ok := value.([]any)
	e.want("client", ok, value, wanted)
	for _, item := range list {
		if text, ok := item.(string); ok {
			e.Client = append(e.Client, [2]string{text})
			continue
		}
		pair, ok := item.([]any)
		if !ok || len(pair) != 2 {
			e.want("client", false, item, wanted)
			continue
		}
		if names := e.strings("client", pair, wanted, false); len(names) == 2 {
			e.Client = append(e.Client, [2]string(names))
		}
	}
}

// readHeader does not show values: they may be secrets.
func (e *Endpoint) readHeader(value any) {
	table, ok := value.(map[string]any)
	if !ok {
		e.fault("header", "header: want a table")
		return
	}
	for _, name := range sorted(table) {
		e.Header = append(e.Header, name)
		list, ok := table[name].([]any)
		if _, one := table[name].(string); !one && !ok || slices.ContainsFunc(list, func(item any) bool { _, ok := item.(string); return !ok }) {
			e.fault("header", "header %s: want a string, or a list of strings", name)
		}
	}
}

func sorted[V any](table map[string]V) []string {
	var names []string
	for name := range table {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// place is the heading of a mirror.
type place struct {
	name string
	line int
}

// written is where the keys of a file are.
type written struct {
	// hosts are the headings in the order in which containerd asks.
	hosts []place
	// lines are those of keys with their tables; see key.
	lines map[string]int
}

func key(names ...string) string { return strings.Join(names, "\x00") }

// of returns the lines of the keys of a table by their names in lower case, and its own as that of "".
func (w *written) of(table ...string) map[string]int {
	all := map[string]int{}
	for at, line := range w.lines {
		names := strings.Split(at, "\x00")
		if len(names) > len(table) && slices.Equal(names[:len(table)], table) {
			name := strings.ToLower(names[len(table)])
			if all[name] == 0 || line < all[name] {
				all[name] = line
			}
		}
	}
	all[""] = w.lines[key(table...)]
	if len(table) == 0 {
		all[""] = w.lines["server"]
	}
	return all
}

// places finds the keys of a file. It finds the headings of mirrors as containerd does.
func places(data []byte) *written {
	w := &written{lines: map[string]int{}}
	var p unstable.Parser
	p.Reset(data)
	var table []string
	for p.NextExpression() {
		e := p.Expression()
		if e.Kind != unstable.KeyValue && e.Kind != unstable.Table && e.Kind != unstable.ArrayTable {
			continue
		}
		var names []string
		line := 0
		for it := e.Key(); it.Next(); {
			if line == 0 {
				line = p.Shape(it.Node().Raw).Start.Line // Data is a copy if the key has escapes
			}
			names = append(names, string(it.Node().Data))
		}
		if e.Kind == unstable.KeyValue {
			names = slices.Concat(table, names)
		} else {
			table = names
		}
		for i := range names {
			if at := key(names[:i+1]...); w.lines[at] == 0 {
				w.lines[at] = line
			}
		}
		if e.Kind == unstable.Table && len(names) >= 2 && names[0] == "host" && (len(w.hosts) == 0 || w.hosts[len(w.hosts)-1].name != names[1]) {
			w.hosts = append(w.hosts, place{names[1], line})
		}
	}
	return w
}
