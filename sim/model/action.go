package model

import "fmt"

// actionKind is the kind of a step. Walk draws a kind first and then a step of that kind.
type actionKind uint8

const (
	actWrite actionKind = 1 + iota
	actAppend
	actFollow
	actCount
	actBegin
	actPropose
	actWithdraw
	actUnchanged
	actAlter
	actReadISR
	actElect
	actFence
	actLearn
	actElected
	actPromise
	actVote
	actActivate
	actRound
	actHeartbeat
	actGrant
	actHold
	actClose
	actAgree
	actPublish
	actPrepare
	actHandOver
	actTakeOver
	actAdopt
	actCrash
	actDamage
	actImage
	actFetch
	actAskAgain
	actAlarm
	actRefuse
	actStop
	actGiveUp
	actRemove
	actPlace
	actDrop
	actLoseRegion
	actEndRegion
	actGiveUpRegion
	actFenceNode
	actReturn
	actUpgrade
	actTakeSet
	actInstall
	actProposeAdopt
	actCancel

	actionKinds
)

// Action describes a step in numbers. Actions appear only in traces: the search does not compare
// them.
type Action struct {
	kind       actionKind
	a, b, x, y uint8
}

// String describes the action in a sentence. Replicas are numbered 0 to 2; sets are printed as
// bits, replica 2 first.
func (a Action) String() string {
	switch a.kind {
	case actWrite:
		return fmt.Sprintf("%d appends client write %d", a.a, a.x)
	case actAppend:
		return fmt.Sprintf("%d sends APPEND of %d entries, commit %d", a.a, a.x, a.y)
	case actFollow:
		return fmt.Sprintf("%d accepts APPEND from %d in epoch %d, %d entries, and acknowledges", a.a, a.b, a.x, a.y)
	case actCount:
		return fmt.Sprintf("%d counts the acknowledgement from %d, match %d", a.a, a.b, a.x)
	case actBegin:
		return fmt.Sprintf("%d begins the change %03b -> %03b", a.a, a.x, a.y)
	case actPropose:
		return fmt.Sprintf("%d sends AlterISR %03b -> %03b", a.a, a.x, a.y)
	case actWithdraw:
		return fmt.Sprintf("%d drops its change", a.a)
	case actUnchanged:
		return fmt.Sprintf("%d sends AlterISR %03b, unchanged", a.a, a.x)
	case actAlter:
		return fmt.Sprintf("metadata applies AlterISR of %d: in sync %03b", a.a, a.x)
	case actReadISR:
		return fmt.Sprintf("%d reads the record: in sync %03b, version %d", a.a, a.x, a.y)
	case actElect:
		return fmt.Sprintf("metadata elects %d for epoch %d, in sync %03b", a.a, a.x, a.y)
	case actFence:
		return fmt.Sprintf("metadata fences %d, in sync %03b", a.a, a.x)
	case actLearn:
		return fmt.Sprintf("%d learns of epoch %d and promises it", a.a, a.x)
	case actElected:
		return fmt.Sprintf("%d learns that it is elected for epoch %d", a.a, a.x)
	case actPromise:
		return fmt.Sprintf("%d promises epoch %d to %d", a.a, a.x, a.b)
	case actVote:
		return fmt.Sprintf("%d counts the promise from %d", a.a, a.b)
	case actActivate:
		return fmt.Sprintf("%d becomes primary of epoch %d, starting at %d", a.a, a.x, a.y)
	}
	return a.stringRest()
}

// stringRest is String for leases, closed timestamps, handovers and restarts.
func (a Action) stringRest() string {
	switch a.kind {
	case actRound:
		return fmt.Sprintf("time: %d enters lease round %d, all earlier grants to it have ended", a.a, a.x)
	case actHeartbeat:
		return fmt.Sprintf("%d sends a heartbeat to %d in round %d, confirming exclusion below %d", a.a, a.b, a.x, a.y)
	case actGrant:
		return fmt.Sprintf("%d grants %d round %d%s", a.a, a.b, a.x, exclusionText(a.y))
	case actHold:
		return fmt.Sprintf("%d receives the grant from %d for round %d%s", a.a, a.b, a.x, exclusionText(a.y))
	case actClose:
		return fmt.Sprintf("%d closes timestamp %d", a.a, a.x)
	case actAgree:
		return fmt.Sprintf("%d acknowledges closed timestamp %d from %d", a.a, a.x, a.b)
	case actPublish:
		return fmt.Sprintf("%d publishes closed timestamp %d", a.a, a.x)
	case actPrepare:
		return fmt.Sprintf("metadata prepares a handover to %d as epoch %d", a.a, a.x)
	case actHandOver:
		return fmt.Sprintf("%d hands over to %d as epoch %d", a.a, a.b, a.x)
	case actTakeOver:
		return fmt.Sprintf("%d takes over from %d as epoch %d", a.a, a.b, a.x)
	case actAdopt:
		return fmt.Sprintf("metadata adopts %d as primary of epoch %d with in-sync set %03b", a.a, a.x, a.y)
	case actCrash:
		return fmt.Sprintf("%d crashes and restarts", a.a)
	case actDamage:
		return fmt.Sprintf("%d restarts with lost data: %d entries, promised %d, stored commit %d", a.a, a.b, a.x, a.y)
	case actImage:
		return fmt.Sprintf("the disk of %d is copied: %d entries, promised %d", a.a, a.y, a.x)
	case actFetch:
		return fmt.Sprintf("%d fetches from %d: it has %d of %d entries", a.a, a.b, a.x, a.y)
	case actAskAgain:
		return fmt.Sprintf("%d drops the answers and asks again for epoch %d", a.a, a.x)
	case actAlarm:
		return fmt.Sprintf("%d waits: the best log does not reach the reported commit %d", a.a, a.x)
	case actRefuse:
		return fmt.Sprintf("%d refuses epoch %d of %d, which undoes committed entries", a.a, a.x, a.b)
	case actStop:
		return fmt.Sprintf("%d is refused by %d and stops", a.a, a.b)
	case actRemove:
		return fmt.Sprintf("metadata removes the copy of %d in epoch %d", a.a, a.x)
	case actPlace:
		return fmt.Sprintf("metadata gives %d a copy again, in epoch %d", a.a, a.x)
	case actDrop:
		return fmt.Sprintf("%d drops its copy, which a record of epoch %d removed", a.a, a.x)
	case actLoseRegion:
		return fmt.Sprintf("the region of %03b is lost with its disks", a.x)
	case actEndRegion:
		return fmt.Sprintf("the removal of the region of %03b ends, and its nodes stop", a.x)
	case actGiveUpRegion:
		return fmt.Sprintf("the region of %03b is given up, and %d is elected for epoch %d", a.b, a.a, a.x)
	case actFenceNode:
		return fmt.Sprintf("metadata fences node %d: fenced %03b, in sync %03b", a.a, a.x, a.y)
	case actReturn:
		return fmt.Sprintf("%d, which was fenced, returns in a new life", a.a)
	case actUpgrade:
		return fmt.Sprintf("%d restarts with the newer build", a.a)
	case actTakeSet:
		return fmt.Sprintf("%d receives a copy of %d: %d entries, commit %d", a.a, a.b, a.y, a.x)
	case actInstall:
		return fmt.Sprintf("%d installs the copy: %d entries, commit %d", a.a, a.y, a.x)
	case actProposeAdopt:
		return fmt.Sprintf("%d proposes to adopt epoch %d", a.a, a.x)
	case actCancel:
		return fmt.Sprintf("metadata cancels the handover of epoch %d", a.x)
	case actGiveUp:
		return fmt.Sprintf("%d gives up as primary of epoch %d", a.a, a.x)
	}
	return fmt.Sprintf("action %d", a.kind)
}

// exclusionText describes the exclusion in a grant.
func exclusionText(epoch uint8) string {
	if epoch == 0 {
		return ""
	}
	return fmt.Sprintf(", not for epochs below %d", epoch)
}
