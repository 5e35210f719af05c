package model

var mutationNames = [mutations]string{"","fence","no-cut-to-commit","ack-what-was-sent","commit-needs-pending","shrink-after-commit","join-caught-up","join-from-start","shrink-keeps-copies","pending-until-version","compare-and-set","lives-compared","sent-stays","both-until-decided","unchanged-moves-version","elect-from-isr","reserved-not-reused","prepare-quorum","read-after-start","wait-for-grants","durable-promise","new-epoch-after-restart","registration-first","remember-grants","fresh-node-only","lease-from-sending","lease-from-all","lease-needs-pending","exclusion-listed","listed-until-confirmed","exclusion-with-grant","confirm-after-dropping","floor-kept","confirmed-per-life","old-life-ignored","grant-of-this-life","exclusion-after-restart","publish-needs-all","publish-needs-pending","join-agrees-closed","closed-fenced","durable-clock","handover-no-pending","handover-steps-down"}

func MutationByName(n string) (Mutation, bool) {
	for i, s := range mutationNames {
		if s == n {
			return Mutation(i), true
		}
	}
	return 0, false
}
