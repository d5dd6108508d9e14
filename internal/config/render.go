package config

import (
	"fmt"
	"reflect"
	"strings"
)

// Sample renders a configuration as a file with its help as comments.
func Sample(cfg *Daemon) string {
	var b strings.Builder
	for _, section := range Sections(cfg) {
		if section.Name != "" {
			fmt.Fprintf(&b, "\n# %s\n[%s]\n", section.Help, section.Name)
		}
		for _, field := range section.Fields {
			fmt.Fprintf(&b, "# %s\n", field.Help)
			if field.Engine != "" {
				fmt.Fprintf(&b, "# Only engine %s uses it.\n", field.Engine)
			}
			if len(field.OneOf) > 0 {
				fmt.Fprintf(&b, "# %s: %s.\n", field.choice(), strings.Join(field.OneOf, ", "))
			}
			fmt.Fprintf(&b, "%s = %s\n", field.Name(), field.TOML())
		}
	}
	sampleHandlers(&b, cfg.Handlers)
	return b.String()
}

// Reference renders the page docs/config.md.
func Reference(cfg *Daemon) string {
	var b strings.Builder
	b.WriteString("# Configuration of `berth serve`\n\n" +
		"<!-- Made by `make generate` from internal/config/daemon.go. Do not edit. -->\n\n" +
		"`berth serve --config FILE` reads a TOML file; flags win over it. `berth config default` prints the\n" +
		"file below with its help, `berth config check` names every fault with its line, `berth config dump`\n" +
		"prints the effective configuration, `berth config dump --running` that of the daemon. On SIGHUP the\n" +
		"daemon reads the file again. Keys with a ✔ under *reload* apply to what is created from then on.\n" +
		"`berth info` and the log name a changed key without one; it keeps its value until the next start. A\n" +
		"file with faults changes nothing: see [what a reload did](running.md#what-a-reload-did).\n" +
		"Options of other runtimes, and where they are here: [peers.md](peers.md).\n")
	for _, section := range Sections(cfg) {
		if section.Name != "" {
			fmt.Fprintf(&b, "\n## [%s]\n\n%s\n", section.Name, section.Help)
		}
		b.WriteString("\n| key | default | reload | meaning |\n|---|---|---|---|\n")
		for _, field := range section.Fields {
			help := field.Help
			if len(field.OneOf) > 0 {
				help += " " + field.choice() + " `" + strings.Join(field.OneOf, "`, `") + "`."
			}
			if field.Engine != "" {
				help += " Only engine `" + field.Engine + "` uses it."
			}
			if field.Flag != "" {
				help += " Flag `--" + field.Flag + "`."
			}
			reload := ""
			if field.Reload {
				reload = "✔"
			}
			fmt.Fprintf(&b, "| `%s` | `%s` | %s | %s |\n", field.Key, field.TOML(), reload, help)
		}
	}
	referenceHandlers(&b)
	return b.String()
}

// choice is how the accepted values are introduced.
func (f Field) choice() string {
	if f.value.Kind() == reflect.Slice {
		return "Of"
	}
	return "One of"
}
