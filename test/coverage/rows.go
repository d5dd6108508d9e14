package main

import (
	"fmt"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// table is one part of the API with the rows that cover it.
type table struct {
	title string
	// what names the part in faults.
	what string
	// api is all that the API has: calls, or paths of fields.
	api  []string
	rows []row
}

// row is a group of calls or fields that one test tries.
type row struct {
	// name is the subtest's name, too.
	name string
	// covers are names of calls or paths of fields; "a.{b,c}" stands for a.b and a.c.
	covers []string
	// test is the test function that has the subtest; whole says that it is the
	// row's test with all its subtests.
	test  string
	whole bool
	// needs are names of abilities.
	needs []string
	// note is what a reader should know, "" for nothing.
	note string
	// later says that berth answers Unimplemented, and the test wants that.
	later bool
}

// paths are what covers stands for.
func (r row) paths() ([]string, error) {
	var all []string
	for _, pattern := range r.covers {
		paths, err := expand(pattern)
		if err != nil {
			return nil, err
		}
		all = append(all, paths...)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("it covers nothing")
	}
	return all, nil
}

func allTables() []table {
	return []table{
		{"Calls", "calls", calls(), callRows()},
		{"Fields of a sandbox", "PodSandboxConfig", fieldsOf(&runtimeapi.PodSandboxConfig{}), sandboxRows()},
		{"Fields of a container", "ContainerConfig", fieldsOf(&runtimeapi.ContainerConfig{}), containerRows()},
	}
}

// resourceFields are all fields of LinuxContainerResources.
const resourceFields = "{cpu_period,cpu_quota,cpu_shares,memory_limit_in_bytes,oom_score_adj,cpuset_cpus,cpuset_mems," +
	"hugepage_limits.{page_size,limit},unified,memory_swap_limit_in_bytes}"

// usernsFields are all fields of UserNamespace.
const usernsFields = "{mode,{uids,gids}.{host_id,container_id,length}}"

// security is where a security context's fields are.
const security = "linux.security_context."
