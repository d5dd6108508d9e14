package checkpoints

import (
	"fmt"
	"hash"
	"hash/adler32"
	"hash/fnv"
	"strings"
)

// dialect is how one range of releases computes the checksum of a checkpoint: a hash of the
// object as a printer for debugging shows it, with the names of Go's types and fields. So each
// renaming of a package and each new field has changed the checksum.
type dialect struct {
	// data and port are the packages of the types.
	data, port string
	// whole is true for a hash of the whole object with its checksum set to 0, and false for a
	// hash of its data alone.
	whole bool
	// hostNetwork and hostIP are true for releases whose types have these fields.
	hostNetwork, hostIP bool
	hash                func() hash.Hash32
}

const (
	shim = "dockershim"
	core = "core"
)

// dialects are all that were released.
func dialects() []dialect {
	return []dialect{
		// cri-dockerd
		{data: core, port: "config", hostNetwork: true, hostIP: true, hash: fnv.New32a},
		// Kubernetes 1.10 to 1.23; the field for the address of the host came between.
		{data: shim, port: shim, hostNetwork: true, hostIP: true, hash: fnv.New32a},
		{data: shim, port: shim, hostNetwork: true, hash: fnv.New32a},
		// Kubernetes 1.6 to 1.9
		{data: shim, port: shim, whole: true, hostNetwork: true, hash: fnv.New32a},
		{data: shim, port: shim, whole: true, hash: fnv.New32a},
		{data: shim, port: shim, whole: true, hash: adler32.New},
	}
}

// isValid reports whether one of the releases wrote this checksum.
func isValid(f *file) bool {
	for _, d := range dialects() {
		if text, ok := d.print(f); ok && uint64(sum(d.hash(), text)) == f.Checksum {
			return true
		}
	}
	return false
}

func sum(h hash.Hash32, text string) uint32 {
	_, _ = h.Write([]byte(text)) // a hash takes everything
	return h.Sum32()
}

// print returns the text that the release hashed. ok is false for content that it cannot have
// written.
func (d dialect) print(f *file) (text string, ok bool) {
	if !d.whole {
		if f.Data == nil {
			return "", false
		}
		fields, ok := d.printData(f.Data)
		return "(" + d.data + ".CheckpointData)" + fields, ok
	}
	data := "<nil>"
	if f.Data != nil {
		if data, ok = d.printData(f.Data); !ok {
			return "", false
		}
	}
	return fmt.Sprintf("(%[1]s.PodSandboxCheckpoint){Version:(string)%[2]s Name:(string)%[3]s Namespace:(string)%[4]s "+
		"Data:(*%[1]s.CheckpointData)%[5]s CheckSum:(uint64)0}", d.data, f.Version, f.Name, f.Namespace, data), true
}

func (d dialect) printData(data *fileData) (text string, ok bool) {
	if !d.hostNetwork && data.HostNetwork {
		return "", false
	}
	var b strings.Builder
	fmt.Fprintf(&b, "{PortMappings:([]*%s.PortMapping)", d.port)
	if data.PortMappings == nil {
		b.WriteString("<nil>")
	} else {
		b.WriteString("[")
		for i, p := range data.PortMappings {
			if p == nil || !d.hostIP && p.HostIP != "" {
				return "", false
			}
			if i > 0 {
				b.WriteString(" ")
			}
			fmt.Fprintf(&b, "<*>{Protocol:(*%s.Protocol)%s ContainerPort:(*int32)%s HostPort:(*int32)%s",
				d.port, printed(p.Protocol), printed(p.ContainerPort), printed(p.HostPort))
			if d.hostIP {
				b.WriteString(" HostIP:(string)" + p.HostIP)
			}
			b.WriteString("}")
		}
		b.WriteString("]")
	}
	if d.hostNetwork {
		fmt.Fprintf(&b, " HostNetwork:(bool)%t", data.HostNetwork)
	}
	b.WriteString("}")
	return b.String(), true
}

func printed[T any](p *T) string {
	if p == nil {
		return "<nil>"
	}
	return fmt.Sprint(*p)
}
