-- Refuses what the partition QOS of the imitated machine would refuse. Before this text stand the machine's
-- facts: account_required, qos_required, default_partition, and partitions by name.

-- What Slurm puts into a field of 16, 32 or 64 bits that the user has not set (slurm.h: NO_VAL).
local NOT_SET = { [0xfffe] = true, [0xffff] = true, [0xfffffffe] = true, [0xffffffff] = true }
-- slurm_errno.h: ESLURM_INVALID_ACCOUNT, ESLURM_ACCOUNTING_POLICY, ESLURM_INVALID_QOS.
local INVALID_ACCOUNT, ACCOUNTING_POLICY, INVALID_QOS = 2045, 2050, 2066
-- PENDING, RUNNING, SUSPENDED; the flags of a state are above its lowest byte.
local LAST_LIVE_STATE = 2

local function number(value)
  if value == nil or value <= 0 or value >= 0xfffffffe or NOT_SET[value] then
    return nil
  end
  return value
end

-- "gres:gpu:a100:2,gres:nvme:100" -> 2
local function num_devices(text)
  local total = 0
  for word in string.gmatch(text or "", "[^,]+") do
    word = string.gsub(word, "^gres[:/]", "")
    if word == "gpu" or string.find(word, "^gpu[:=]") then
      total = total + (tonumber(string.match(word, "[:=](%d+)$")) or 1)
    end
  end
  return total
end

local function asked(job, limits)
  local per_task_cores = number(job.cpus_per_task) or 1
  local per_node = number(job.ntasks_per_node)
  local tasks = number(job.num_tasks)
  local nodes = number(job.min_nodes) or (tasks and per_node and math.ceil(tasks / per_node)) or 1
  tasks = tasks or nodes * (per_node or 1)
  local devices = num_devices(job.tres_per_job)
  devices = math.max(devices, nodes * num_devices(job.tres_per_node), tasks * num_devices(job.tres_per_task))
  local node_devices = math.max(num_devices(job.tres_per_node), math.ceil(devices / nodes))
  local threads = math.max(tasks * per_task_cores, number(job.min_cpus) or 0, devices * num_devices(job.cpus_per_tres))
  local cores = math.ceil(threads / limits.threads_per_core)
  if limits.whole_nodes then
    return nodes * limits.node_devices, limits.node_devices, nodes * limits.node_cores
  end
  return devices, node_devices, cores
end

local function num_jobs(user_id, partition)
  local found = 0
  for _, job in pairs(slurm.jobs) do
    if job.user_id == user_id and job.partition == partition and job.job_state % 256 <= LAST_LIVE_STATE then
      found = found + 1
    end
  end
  return found
end

-- The time limit of a job of this size: the list has other limits of smaller jobs, the smallest first.
local function max_minutes(nodes, limits)
  for _, limit in ipairs(limits) do
    if nodes <= limit[1] then
      return limit[2]
    end
  end
  return limits.max_minutes
end

-- The name of the first limit that a job breaks in a partition.
local function broken(job, name, limits, user_id)
  local devices, node_devices, cores = asked(job, limits)
  local nodes, minutes = number(job.min_nodes) or 1, number(job.time_limit)
  local most_minutes = max_minutes(nodes, limits)
  if minutes and most_minutes and minutes > most_minutes then
    return "max_minutes"
  elseif limits.min_nodes and nodes < limits.min_nodes then
    return "min_nodes"
  elseif limits.max_nodes and nodes > limits.max_nodes then
    return "max_nodes"
  elseif limits.min_devices and devices < limits.min_devices then
    return "min_devices"
  elseif limits.max_devices and devices > limits.max_devices then
    return "max_devices"
  elseif limits.max_devices_per_node and node_devices > limits.max_devices_per_node then
    return "max_devices_per_node"
  elseif limits.max_cores and cores > limits.max_cores then
    return "max_cores"
  elseif limits.max_jobs and num_jobs(user_id, name) >= limits.max_jobs then
    return "max_jobs"
  end
  return nil
end

function slurm_job_submit(job, part_list, submit_uid)
  if account_required and (job.account == nil or job.account == "") then
    slurm.log_info("refused: no account")
    return INVALID_ACCOUNT
  end
  if qos_required and (job.qos == nil or job.qos == "") then
    slurm.log_info("refused: no QOS")
    return INVALID_QOS
  end
  for name in string.gmatch(job.partition or default_partition, "[^,]+") do
    local limits = partitions[name .. "/" .. (job.qos or "")] or partitions[name .. "/"]
    local limit = limits and broken(job, name, limits, job.user_id)
    if limit then
      slurm.log_info("refused: %s of %s", limit, name)
      return ACCOUNTING_POLICY
    end
  end
  return slurm.SUCCESS
end

function slurm_job_modify()
  return slurm.SUCCESS
end

return slurm.SUCCESS
