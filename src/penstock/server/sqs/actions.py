"""The table of all actions."""

from __future__ import annotations

from penstock.server.sqs import moves, queues, receiving, requests, sending
from penstock.server.sqs.call import Action

ACTIONS: dict[str, Action] = {
    "AddPermission": Action(requests.AddPermission, "manage", queues.add_permission),
    "CancelMessageMoveTask": Action(
        requests.CancelMessageMoveTask, "manage", moves.cancel_message_move_task
    ),
    "ChangeMessageVisibility": Action(
        requests.ChangeMessageVisibility, "consume", receiving.change_message_visibility
    ),
    "ChangeMessageVisibilityBatch": Action(
        requests.ChangeMessageVisibilityBatch, "consume", receiving.change_message_visibility_batch
    ),
    "CreateQueue": Action(requests.CreateQueue, "manage", queues.create_queue),
    "DeleteMessage": Action(requests.DeleteMessage, "consume", receiving.delete_message),
    "DeleteMessageBatch": Action(
        requests.DeleteMessageBatch, "consume", receiving.delete_message_batch
    ),
    "DeleteQueue": Action(requests.DeleteQueue, "manage", queues.delete_queue),
    "GetQueueAttributes": Action(
        requests.GetQueueAttributes, "describe", queues.get_queue_attributes
    ),
    "GetQueueUrl": Action(requests.GetQueueUrl, "describe", queues.get_queue_url),
    "ListDeadLetterSourceQueues": Action(
        requests.ListDeadLetterSourceQueues, "describe", queues.list_dead_letter_source_queues
    ),
    "ListMessageMoveTasks": Action(
        requests.ListMessageMoveTasks, "describe", moves.list_message_move_tasks
    ),
    "ListQueueTags": Action(requests.ListQueueTags, "describe", queues.list_queue_tags),
    "ListQueues": Action(requests.ListQueues, "describe", queues.list_queues),
    "PurgeQueue": Action(requests.PurgeQueue, "manage", queues.purge_queue),
    "ReceiveMessage": Action(requests.ReceiveMessage, "consume", receiving.receive_message),
    "RemovePermission": Action(requests.RemovePermission, "manage", queues.remove_permission),
    "SendMessage": Action(requests.SendMessage, "publish", sending.send_message),
    "SendMessageBatch": Action(requests.SendMessageBatch, "publish", sending.send_message_batch),
    "SetQueueAttributes": Action(
        requests.SetQueueAttributes, "manage", queues.set_queue_attributes
    ),
    "StartMessageMoveTask": Action(
        requests.StartMessageMoveTask, "manage", moves.start_message_move_task
    ),
    "TagQueue": Action(requests.TagQueue, "manage", queues.tag_queue),
    "UntagQueue": Action(requests.UntagQueue, "manage", queues.untag_queue),
}
