package cni

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/utils"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/hostnet"
)

// conf is one configuration, read and complete.
type conf struct {
	file string
	list *libcni.NetworkConfigList
	// content is what the file had when the list was made of it, nil if that is not known. confs.mu guards it.
	content []byte
}

// hasChanged reports whether the file may have another configuration now.
func (c *conf) hasChanged() bool {
	content, err := os.ReadFile(c.file)
	if err != nil || c.content == nil || !bytes.Equal(content, c.content) {
		return true
	}
	// libcni reads further plugins from the files in this directory.
	_, err = os.Lstat(filepath.Join(filepath.Dir(c.file), c.list.Name))
	return !errors.Is(err, os.ErrNotExist)
}

// confs finds the configurations that are in use. It reads the directory at each call, so
// there is no watch that could be lost when the directory is removed, replaced or mounted
// over. Reading it takes microseconds, an ADD tens of milliseconds.
//
// A file that is in use and becomes invalid stays in use with its last valid content: a file
// that is being written, or an operator's mistake, must not stop a node that works. A file
// that is removed is out of use at once.
type confs struct {
	dir string
	// max is how many files are in use, 0 for all.
	max int
	log *slog.Logger
	// keep writes down what is in use, for the next start.
	keep func([]goodConf) error
	// refusal returns why no pod could be attached with a list that can be read, nil if one may. Nil for no such look.
	refusal func(*libcni.NetworkConfigList) error
	// began is called with each configuration that comes into use, nil for no call. It must not wait.
	began func(*conf)

	mu         sync.Mutex
	last       []*conf // what the last call found, in order
	lastLogged string  // the last complaint that was logged
}

// current returns the first valid configurations by name, one at least. Unavailable when
// there is none.
func (c *confs) current() ([]*conf, error) {
	found, err := c.look()
	if len(found) > 0 {
		err = nil
	}
	return found, err
}

// look is current, but returns the faults of files beside those in use, too.
func (c *confs) look() ([]*conf, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	files, err := libcni.ConfFiles(c.dir, []string{".conf", ".conflist", ".json"}) // in order of their names
	if err != nil && len(c.last) > 0 {
		err = fmt.Errorf("cannot read %s (the configuration that was read last stays in use): %w", c.dir, err)
		c.logOnce(err)
		return c.last, err
	}
	if err != nil {
		return nil, fmt.Errorf("NetworkPluginNotReady: cni config not initialized: cannot read %s: %w: %w", c.dir, err, errs.Unavailable)
	}
	found, fault := c.read(files)
	c.logOnce(fault)
	c.use(found)
	switch {
	case len(found) > 0:
		return found, fault
	case fault == nil:
		return nil, fmt.Errorf("NetworkPluginNotReady: cni config not initialized: no configuration in %s: %w", c.dir, errs.Unavailable)
	default:
		return nil, fmt.Errorf("NetworkPluginNotReady: cni config not initialized: no valid configuration: %w: %w", fault, errs.Unavailable)
	}
}

// read returns the configurations that are in use now, and the faults of files up to the last
// of them.
func (c *confs) read(files []string) (found []*conf, fault error) {
	var faults []error
	for _, file := range files {
		if c.max > 0 && len(found) == c.max {
			break
		}
		before := c.inUse(file)
		now, err := c.readOne(file, before)
		if err == nil {
			found = append(found, now)
			continue
		}
		if _, gone := os.Lstat(file); errors.Is(gone, os.ErrNotExist) {
			continue // removed since the directory was read
		}
		err = faultOf(file, err)
		if before != nil {
			found = append(found, before)
			err = fmt.Errorf("%w (its last valid content stays in use)", err)
		}
		faults = append(faults, err)
	}
	return found, errors.Join(faults...)
}

// errNoFile is the fault of a named pipe, a directory or a device.
var errNoFile = errors.New("it is not a regular file")

// readOne returns the configuration of a file, which is before if it is the same. The caller holds c.mu.
func (c *confs) readOne(file string, before *conf) (*conf, error) {
	if info, err := os.Stat(file); err == nil && !info.Mode().IsRegular() {
		return nil, errNoFile // the reader of a named pipe would wait
	}
	if before != nil && !before.hasChanged() {
		return before, nil
	}
	content, _ := os.ReadFile(file) // load reports the error
	list, err := load(file)
	if err == nil && c.refusal != nil {
		err = c.refusal(list)
	}
	if err != nil {
		return nil, err
	}
	now := before
	if before == nil || !bytes.Equal(before.list.Bytes, list.Bytes) {
		now = &conf{file: file, list: list}
	}
	now.content = content
	if now.hasChanged() {
		now.content = nil // it changed meanwhile: the list may be of either content
	}
	return now, nil
}

// inUse returns the configuration of a file that is in use, nil for none. The caller holds
// c.mu.
func (c *confs) inUse(file string) *conf {
	if i := slices.IndexFunc(c.last, func(l *conf) bool { return l.file == file }); i >= 0 {
		return c.last[i]
	}
	return nil
}

// use logs and writes down a change. The caller holds c.mu.
func (c *confs) use(found []*conf) {
	if slices.Equal(found, c.last) {
		return
	}
	var kept []goodConf
	for _, f := range found {
		if !slices.Contains(c.last, f) {
			c.log.Info("CNI configuration in use", "file", f.file, "network", f.list.Name, "version", f.list.CNIVersion)
			if c.began != nil {
				c.began(f)
			}
		}
		kept = append(kept, goodConf{File: f.file, Conf: f.list.Bytes})
	}
	c.last = found
	if c.keep == nil {
		return
	}
	if err := c.keep(kept); err != nil {
		c.log.Warn("cannot write down the CNI configuration in use; it would not outlive a restart of berth if its file became invalid", "error", err)
	}
}

// restore takes over what the last process had in use. A configuration that cannot be read
// any more is left out.
func (c *confs) restore(kept []goodConf) {
	for _, k := range kept {
		list, err := libcni.NetworkConfFromBytes(k.Conf)
		if err == nil && c.refusal != nil {
			err = c.refusal(list)
		}
		if err == nil && filepath.Dir(k.File) == filepath.Clean(c.dir) {
			c.last = append(c.last, &conf{file: k.File, list: list})
			if c.began != nil {
				c.began(c.last[len(c.last)-1])
			}
		}
	}
}

// logOnce logs what is wrong with files, once. The caller holds c.mu.
func (c *confs) logOnce(fault error) {
	text := ""
	if fault != nil {
		text = fault.Error()
	}
	if text != c.lastLogged && fault != nil {
		c.log.Warn("invalid CNI configuration", "error", fault)
	}
	c.lastLogged = text
}

// load reads a list, or a single plugin as a list of one.
func load(file string) (*libcni.NetworkConfigList, error) {
	var list *libcni.NetworkConfigList
	var err error
	if filepath.Ext(file) == ".conflist" {
		list, err = libcni.NetworkConfFromFile(file)
	} else {
		list, err = loadSingle(file)
	}
	if err != nil {
		return nil, err
	}
	return complete(list)
}

func loadSingle(file string) (*libcni.NetworkConfigList, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return listOfOne(data)
}

// listOfOne makes a list of the configuration of one plugin.
func listOfOne(data []byte) (*libcni.NetworkConfigList, error) {
	single, err := libcni.NetworkPluginConfFromBytes(data)
	if err != nil {
		return nil, err
	}
	whole, err := json.Marshal(map[string]any{
		"name": single.Network.Name, "cniVersion": single.Network.CNIVersion,
		"plugins": []json.RawMessage{single.Bytes},
	})
	if err != nil {
		return nil, err
	}
	return libcni.NetworkConfFromBytes(whole)
}

// complete checks a list and makes its bytes hold all of it, also plugins that
// came from files of their own, so that the bytes alone are enough for DEL.
func complete(list *libcni.NetworkConfigList) (*libcni.NetworkConfigList, error) {
	if strings.TrimSpace(list.Name) == "" {
		return nil, errors.New("the network has no name")
	}
	if utils.ValidateNetworkName(list.Name) != nil { // libcni would refuse each ADD
		return nil, fmt.Errorf("field name: %q has a character that CNI does not allow: it begins with a letter or digit, and has letters, digits, '_', '.' and '-'", list.Name)
	}
	if _, err := version.GreaterThan(list.CNIVersion, "0.0.0"); list.CNIVersion != "" && err != nil {
		return nil, err
	}
	var plugins []json.RawMessage
	for i, p := range list.Plugins {
		if p.Network.Type == "" {
			return nil, fmt.Errorf("plugin %d has no type", i)
		}
		plugins = append(plugins, p.Bytes)
	}
	if len(plugins) == 0 {
		return nil, errors.New("the network has no plugins")
	}
	var raw map[string]any
	if err := json.Unmarshal(list.Bytes, &raw); err != nil {
		return nil, err
	}
	raw["plugins"], raw["loadOnlyInlinedPlugins"] = plugins, true
	whole, err := json.Marshal(raw)
	if err != nil {
		return nil, err
	}
	return libcni.NetworkConfFromBytes(whole)
}

// faultOf adds the file to the error of its content and, where the fault is at one place, the
// line and the column: "FILE:LINE:COLUMN". libcni's own errors count from the begin of one
// plugin, and after it has written that anew.
func faultOf(file string, err error) error {
	if errors.Is(err, errNoFile) {
		return fmt.Errorf("%s: %w", file, err)
	}
	data, readErr := os.ReadFile(file)
	if readErr != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	offset, field := placeOf(data, filepath.Ext(file) == ".conflist")
	if offset < 0 {
		return fmt.Errorf("%s: %w", file, err)
	}
	before := data[:min(offset, len(data))]
	line, column := bytes.Count(before, []byte{'\n'})+1, len(before)-bytes.LastIndexByte(before, '\n')-1
	if field != "" {
		return fmt.Errorf("%s:%d:%d: field %s: %w", file, line, column, field, err)
	}
	return fmt.Errorf("%s:%d:%d: %w", file, line, column, err)
}

// placeOf returns the offset in bytes of the first fault of JSON or of a type, and the name of
// the field if its type is wrong. The offset is -1 if the content has no such fault. Pure.
func placeOf(data []byte, isList bool) (offset int, field string) {
	var err error
	if isList {
		var list struct {
			Name        string             `json:"name"`
			CNIVersion  string             `json:"cniVersion"`
			CNIVersions []string           `json:"cniVersions"`
			Plugins     []types.PluginConf `json:"plugins"`
		}
		err = json.Unmarshal(data, &list)
	} else {
		err = json.Unmarshal(data, &types.PluginConf{})
	}
	var syntax *json.SyntaxError
	var wrong *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		return int(syntax.Offset), ""
	case errors.As(err, &wrong):
		return int(wrong.Offset), wrong.Field
	}
	return -1, ""
}

// warnOverlaps logs the ranges of a configuration that overlap addresses or routes of the host. It refuses nothing: an
// operator may know better, and pods may run.
func (n *Network) warnOverlaps(c *conf) {
	ranges := hostnet.RangesOf(c.list.Bytes)
	if len(ranges) == 0 || n.cfg.Retired {
		return
	}
	host, err := hostnet.In(n.cfg.HostNetNS)
	if err != nil {
		n.log.Warn("cannot compare the ranges of a CNI configuration with the host's addresses", "file", c.file, "error", err)
		return
	}
	for _, r := range ranges {
		for _, o := range host.Overlaps(r.Subnet, r.Own) {
			n.log.Warn("a range of pods in the CNI configuration overlaps the host: a pod or its bridge may take the address, or hide what the route leads to; choose another range",
				"file", c.file, "range", r.String(), "overlaps", o.String())
		}
	}
}
