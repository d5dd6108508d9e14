package fieldtest

import "testing"

func TestNamed(t *testing.T) {
	for message, want := range map[string]string{
		"config.mounts[2].host_path: no":                                        "config.mounts[2].host_path",
		`cannot make it: config.linux.sysctls["kernel.panic"]: is not separate`: `config.linux.sysctls["kernel.panic"]`,
		"rpc error: code = InvalidArgument desc = config.hostname \"a\" is bad": "",
		"cannot run sandbox: config.hostname \"a\" is bad":                      "config.hostname",
		"cannot stop container: timeout: -1 is negative":                        "timeout",
		"filter.state.state: unknown state 99":                                  "filter.state.state",
		"config.linux.security_context.run_as_user: -1":                         "config.linux.security_context.run_as_user",
		"runtime_handler: no runtime":                                           "runtime_handler",
		"config.mounts.host_path: of which":                                     "",
		"config.hostname[0]: no list":                                           "",
		"config.mounts[\"a\"].host_path: no map":                                "",
		"linux.security_context.run_as_user: of another request":                "",
		"cannot use the mount source /x: stale":                                 "",
		"":                                                                      "",
	} {
		if got := Named(message); got != want {
			t.Errorf("%q names %q, want %q", message, got, want)
		}
	}
}
