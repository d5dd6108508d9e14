package plan

import (
	"fmt"
	"net"
	"reflect"
	"strconv"
	"strings"
)

// Difference is one difference of two containers, by the fields of the cluster file.
type Difference struct {
	// Field is the field of the cluster file, without the path of its node.
	Field string
	// Before and After are its values, for people.
	Before, After string
}

// String describes the difference for people.
func (d Difference) String() string {
	return fmt.Sprintf("%s is %s, and was %s", d.Field, d.After, d.Before)
}

// PortsField is the Field of a Difference in ports.
const PortsField = "extraPortMappings"

// Differences returns what a cluster file changes about a container.
func Differences(before, after Container) []Difference {
	a, b := before.described(), after.described()
	var all []Difference
	add := func(field string, alike bool, before, after string) {
		if !alike {
			all = append(all, Difference{field, or(before), or(after)})
		}
	}
	add("role", a.Role == b.Role, a.Role, b.Role)
	add("pool", a.Pool == b.Pool, a.Pool, b.Pool)
	add("image", a.Image == b.Image, a.Image, b.Image)
	add("networking.dnsSearch", a.Search == b.Search, strings.TrimPrefix(a.Search, "="), strings.TrimPrefix(b.Search, "="))
	alike := reflect.DeepEqual(a.Mounts, b.Mounts) && reflect.DeepEqual(a.Volumes, b.Volumes) && reflect.DeepEqual(a.Tmpfs, b.Tmpfs)
	add("extraMounts", alike, mountText(a.Mounts), mountText(b.Mounts))
	for _, of := range []struct {
		field string
		api   bool
	}{{apiField, true}, {PortsField, false}} {
		before, after := portText(a.Ports, of.api), portText(b.Ports, of.api)
		add(of.field, before == after, before, after)
	}
	return all
}

// or is a value, or "none".
func or(text string) string {
	if text == "" {
		return "none"
	}
	return text
}

func mountText(all []Mount) string {
	var texts []string
	for _, m := range all {
		text := m.Source + ":" + m.Target
		for _, option := range []struct {
			set  bool
			name string
		}{{m.ReadOnly, "ro"}, {m.Relabel, "Z"}, {m.Propagation != "" && m.Propagation != "None", string(m.Propagation)}} {
			if option.set {
				text += ":" + option.name
			}
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, " ")
}

// portText renders ports: those of the API, or the others.
func portText(all []Port, api bool) string {
	var texts []string
	for _, p := range all {
		if p.IsAPI() != api {
			continue
		}
		host := strconv.Itoa(p.Host)
		switch p.Host {
		case 0:
			host = "a free port"
		case -1:
			host = "a port of the engine's choice"
		}
		texts = append(texts, fmt.Sprintf("%s to %d/%s", net.JoinHostPort(p.Listen, host), p.Container, p.Protocol))
	}
	return strings.Join(texts, ", ")
}
